"""`zsnapdb clone create`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.command_context import instance_metrics
from zsnapdb.cli.notified_commands import evidence_of
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import (
    POINT,
    SOURCE_HELP,
    AcceptOlder,
    AsJson,
    ConfigFile,
    History,
    InstanceName,
    Once,
    PlanOnly,
    ServerBinary,
)
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone.request import CloneRequest, Created


class ProfileOption(Enum):
    """Memory and processor time that a clone may use."""

    TINY = "tiny"
    NORMAL = "normal"


class TopologyOption(Enum):
    """Relation between the clones of a set."""

    independent = "independent"
    replication = "replication"


NewCloneName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the clone.", show_default="instance and a random word"),
]
SourceName = Annotated[
    str, typer.Option("--from", metavar="SOURCE", help=SOURCE_HELP, autocompletion=completion.sources)
]
ReplayPoint = Annotated[
    str | None,
    typer.Option("--at", metavar="POINT", help=f"Replay point: {POINT}."),
]
LeaseDuration = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="DURATION",
        help="Length of the clone's lease, for example 2h.",
        show_default="clones.ttl",
    ),
]
HeartbeatDuration = Annotated[
    str | None,
    typer.Option(
        "--heartbeat",
        metavar="DURATION",
        help="Destroy the clone after this long without `zsnapdb clone heartbeat`, such as 60s.",
        show_default=False,
    ),
]
QuotaSize = Annotated[
    str | None,
    typer.Option(
        "--quota",
        metavar="SIZE",
        help="Quota of the clone, for example 10GiB.",
        show_default="clones.quota",
    ),
]
CloneOwner = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="Owner of the clone: an account, or a name with a kind, such as ci:shop.",
        show_default="the caller",
    ),
]
ProfileChoice = Annotated[ProfileOption, typer.Option("--profile", help="Memory and processor time of the server.")]
BindAddress = Annotated[
    str | None,
    typer.Option(
        "--bind",
        metavar="ADDRESS",
        help="Address on which the server listens.",
        show_default="clones.bind_address",
    ),
]
CloneCount = Annotated[
    int | None,
    typer.Option(
        "--count", metavar="N", help="Create N clones of the same state, named NAME-1 to NAME-N.", show_default=False
    ),
]
TopologyChoice = Annotated[
    TopologyOption,
    typer.Option(
        "--topology",
        help="With --count: independent servers, or the first as replication source of the others.",
    ),
]
Mask = Annotated[
    bool,
    typer.Option("--mask", help="Mask the data before any login, even if the policy does not require it."),
]
Admin = Annotated[
    bool,
    typer.Option(
        "--admin",
        help="Grant users every privilege of the clone, also over server, files and accounts.",
    ),
]
NoStart = Annotated[
    bool,
    typer.Option("--no-start", help="Create datasets and files only; `zsnapdb clone start` starts the server."),
]

Fresh = Annotated[bool, typer.Option("--fresh", help="Create a new clone of the newest set even if the pool has one.")]


def _owner() -> str:
    import getpass
    import os

    return os.environ.get("SUDO_USER") or getpass.getuser()


def create(
    instance: InstanceName = None,
    name: NewCloneName = None,
    source: SourceName = "latest",
    at: ReplayPoint = None,
    ttl: LeaseDuration = None,
    heartbeat: HeartbeatDuration = None,
    quota: QuotaSize = None,
    owner: CloneOwner = None,
    profile: ProfileChoice = ProfileOption.NORMAL,
    bind: BindAddress = None,
    count: CloneCount = None,
    topology: TopologyChoice = TopologyOption.independent,
    mask: Mask = False,
    admin: Admin = False,
    no_start: NoStart = False,
    fresh: Fresh = False,
    accepts_older: AcceptOlder = False,
    history: History = None,
    once: Once = None,
    binary: ServerBinary = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Clone a snapshot set and start a server on the clone.

    The server is isolated from its source. If the instance has a pool with a prepared clone, that clone is handed out.

    With --once the command can be repeated: it shows the clone of that run, and creates no second one.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority

    # The source server runs on this host, and ten such commands may start at once.
    with at_low_priority():
        from zsnapdb.base.quantities import parse_duration, parse_size
        from zsnapdb.jobs.clone import pool as job
        from zsnapdb.jobs.clone import request as requests
        from zsnapdb.report.clone import create as report

        _check_point(source, at, history)
        if once is not None and count is not None:
            raise typer.BadParameter(
                "--once applies to one clone; run one command, with its own --once id, for each clone of the set"
            )
        settings, chosen = instance_metrics(config, instance, binary=binary)
        request = requests.CloneRequest(
            owner=owner or _owner(),
            name=name,
            source=source,
            at=at,
            history=history,
            ttl=parse_duration(ttl) if ttl is not None else None,
            heartbeat=parse_duration(heartbeat) if heartbeat is not None else None,
            quota=parse_size(quota) if quota is not None else None,
            profile=requests.profile_of(profile.value),
            bind_address=bind,
            starts=not no_start,
            masks=mask,
            rights=requests.rights_of(is_admin=admin),
            accepts_older=accepts_older,
            fresh=fresh,
            program=binary,
        )
    is_set = count is not None or topology is not TopologyOption.independent
    if plan and is_set:
        _create_set(settings, chosen, request, count or 0, topology.value, plan=True, json=json)
    elif plan:
        slot = job.candidate(settings, chosen, request)
        if slot is not None:
            show(report.HandOutPlanView(slot, request), json)
            return
        from zsnapdb.jobs.clone import create_plan

        show(report.ClonePlanView(create_plan.plan(settings, chosen, request)), json)
    elif is_set:
        with evidence_of(chosen, "clone", name or ""):
            _create_set(settings, chosen, request, count or 0, topology.value, plan=False, json=json)
    else:

        def made() -> CommandAnswer | None:
            from zsnapdb.jobs.clone import once as of_run

            known = of_run.created(settings, chosen)
            return _answer(known) if known is not None else None

        def make() -> CommandAnswer:
            named = replace(request, name=name or requests.random_name(chosen))
            with evidence_of(chosen, "clone", str(named.name)):
                result = job.obtain(settings, chosen, named)
            return _answer(result)

        def revealed(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
            from zsnapdb.jobs.clone import once as of_run

            return {**recorded, "password": of_run.password_of(settings, chosen.host, recorded["clone"]["id"])}

        about = f"{chosen.name} {f'at {at}' if at is not None else f'from {source}'} as {name or 'any name'}"
        command = Repeatable("clone create", about, made=made, revealed=revealed, tell=chosen.events.tell)
        show_once(chosen.host, once, command, make, json)


def _create_set(
    settings: Settings,
    instance: Instance,
    request: CloneRequest,
    count: int,
    topology: str,
    *,
    plan: bool,
    json: bool,
) -> None:
    """Make a set of clones, or print the plan."""
    from zsnapdb.jobs.clone import topology as job
    from zsnapdb.report.clone import create as report

    if plan:
        planned = job.plan_set(settings, instance, request, count, job.topology_of(topology))
        show(report.CloneSetPlanView(planned), json)
        return
    made = job.create_set(settings, instance, request, count, job.topology_of(topology))
    show(report.CloneSetView(made), json)


def _answer(created: Created) -> CommandAnswer:
    """Return the output of the command. Its password is not recorded, because the clone's own file has it."""
    from zsnapdb.report.clone.create import CreatedView

    return CommandAnswer(CreatedView(created), kept=CreatedView(created, is_secret=True))


def _check_point(source: str, at: str | None, history: str | None) -> None:
    if at is not None and source != "latest":
        raise typer.BadParameter("give --from or --at, not both")
    if history is not None and at is None:
        raise typer.BadParameter("--history needs --at")
