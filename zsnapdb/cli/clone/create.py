"""`zsnapdb clone create`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from zsnapdb.cli.clone.options import SOURCE_HELP
from zsnapdb.cli.clone.set import create_set
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly
from zsnapdb.cli.output import show


class ProfileOption(Enum):
    """How much of the host a clone takes."""

    TINY = "tiny"
    NORMAL = "normal"


class TopologyOption(Enum):
    """How the clones of a set belong together."""

    independent = "independent"
    replication = "replication"


def _owner() -> str:
    import getpass
    import os

    return os.environ.get("SUDO_USER") or getpass.getuser()


def create(
    instance: NamedInstance,
    name: Annotated[
        str | None, typer.Option("--name", help="The clone's name.", show_default="instance and a random word")
    ] = None,
    source: Annotated[str, typer.Option("--from", metavar="SOURCE", help=SOURCE_HELP)] = "latest",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="POINT", help="A time or GTID between backups: replayed from archived binlogs."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar="DURATION", help="How long it stays, such as 2h.", show_default="clones.ttl"),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose it is.", show_default="the caller")] = None,
    profile: Annotated[
        ProfileOption, typer.Option("--profile", help="How much of the host its server takes.")
    ] = ProfileOption.NORMAL,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", help="Where it listens.", show_default="clones.bind_address"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", metavar="N", help="A set of N clones of one moment, NAME-1 and on.", show_default=False
        ),
    ] = None,
    topology: Annotated[
        TopologyOption,
        typer.Option("--topology", help="Of a set: independent, or the first as the source of the others."),
    ] = TopologyOption.independent,
    mask: Annotated[
        bool, typer.Option("--mask", help="Mask it before anyone can reach it, where the policy would not ask for it.")
    ] = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Make the files only; `clone start` starts and checks the server.")
    ] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a clone of a snapshot set and start its server, separate from its source."""
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import create as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.quantities import duration
    from zsnapdb.report.clone import create as report

    if at is not None and source != "latest":
        raise typer.BadParameter("give --from or --at, not both")
    settings = load(config)
    terminal = Terminal()
    chosen = Instance.of(settings, instance, terminal)
    request = job.CloneRequest(
        owner=owner or _owner(),
        name=name,
        source=source,
        at=at,
        ttl=duration(ttl) if ttl is not None else None,
        profile=job.profile_of(profile.value),
        bind_address=bind,
        starts=not no_start,
        masks=mask,
    )
    if count is not None or topology is not TopologyOption.independent:
        create_set(settings, chosen, request, count or 0, topology.value, terminal, plan=plan, json=json)
        return
    if plan:
        show(report.ClonePlanView(job.plan(settings, chosen, request)), json)
        return
    result = job.create(settings, chosen, request)
    terminal.end()
    show(report.CreatedView(result), json)
