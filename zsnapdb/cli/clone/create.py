"""`zsnapdb clone create`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.attention import evidence_of
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
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
    """How much memory and processor time a clone may take."""

    TINY = "tiny"
    NORMAL = "normal"


class TopologyOption(Enum):
    """How the clones of a set are related."""

    independent = "independent"
    replication = "replication"


NewCloneName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The name of the clone.", show_default="instance and a random word"),
]
SourceName = Annotated[
    str, typer.Option("--from", metavar="SOURCE", help=SOURCE_HELP, autocompletion=completion.sources)
]
ReplayPoint = Annotated[
    str | None,
    typer.Option("--at", metavar="POINT", help=f"{POINT}; archived binlogs are replayed up to it."),
]
LeaseDuration = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="DURATION",
        help="How long the lease of the clone lasts, for example 2h.",
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
        help="How much of its own it may have, for example 10GiB.",
        show_default="clones.quota",
    ),
]
CloneOwner = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="The owner of the clone: an account, or somebody else with a kind, such as ci:shop.",
        show_default="the caller",
    ),
]
ProfileChoice = Annotated[
    ProfileOption, typer.Option("--profile", help="How much memory and processor time the server may take.")
]
BindAddress = Annotated[
    str | None,
    typer.Option(
        "--bind",
        metavar="ADDRESS",
        help="The address on which the server listens.",
        show_default="clones.bind_address",
    ),
]
CloneCount = Annotated[
    int | None,
    typer.Option(
        "--count", metavar="N", help="Make N clones of the same state, named NAME-1 to NAME-N.", show_default=False
    ),
]
TopologyChoice = Annotated[
    TopologyOption,
    typer.Option(
        "--topology",
        help="With --count: independent servers, or the first as the replication source of the others.",
    ),
]
Mask = Annotated[
    bool,
    typer.Option(
        "--mask", help="Mask the data before anyone can connect, even where the policy does not require masking."
    ),
]
Admin = Annotated[
    bool,
    typer.Option(
        "--admin",
        help="Give the users of the clone every privilege in it. Without, they have all of its schemas and may not"
        " change its server, files and accounts.",
    ),
]
NoStart = Annotated[
    bool,
    typer.Option(
        "--no-start", help="Make the datasets and files only; `zsnapdb clone start` starts and checks the server."
    ),
]

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Make a clone of the newest set now, also if one waits in the pool.")
]


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

    The server is isolated from its source. Where the instance has a pool, a clone that waits there is handed out.

    With --once the command can be repeated: the clone that the run of this id made is shown, and no second one is made.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority

    # Somebody's server works on this host, perhaps beside the start of ten such commands.
    with at_low_priority():
        from zsnapdb.base.quantities import parse_duration, parse_size
        from zsnapdb.jobs.clone import pool as job
        from zsnapdb.jobs.clone import request as requests
        from zsnapdb.report.clone import create as report

        _check_point(source, at, history)
        if once is not None and count is not None:
            raise typer.BadParameter("--once is for one clone; give each clone of a set a command and a run of its own")
        settings, chosen = of_instance(config, instance, binary=binary)
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
    """Return what the command shows. Its password is not recorded: the clone's own file has it."""
    from zsnapdb.report.clone.create import CreatedView

    return CommandAnswer(CreatedView(created), kept=CreatedView(created, is_secret=True))


def _check_point(source: str, at: str | None, history: str | None) -> None:
    if at is not None and source != "latest":
        raise typer.BadParameter("give --from or --at, not both")
    if history is not None and at is None:
        raise typer.BadParameter("--history is for a point that --at names")
