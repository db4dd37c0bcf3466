"""`zsnapdb clone create`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zsnapdb.cli import completion, options
from zsnapdb.cli.command_context import instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.notified_commands import evidence_of
from zsnapdb.cli.options import flag, option
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
    """Relation between the clones of a clone set."""

    independent = "independent"
    replication = "replication"


NewCloneName = Annotated[
    str | None, option("--name", "NAME", "Name of the clone.", show_default="instance and a random word")
]
SourceName = Annotated[str, option("--from", "SOURCE", options.SOURCE_HELP, autocompletion=completion.sources)]
ReplayPoint = Annotated[str | None, option("--at", "POINT", f"Replay point: {options.POINT}.")]
LeaseDuration = Annotated[
    str | None, option("--ttl", "DURATION", "Length of the clone's lease, for example 2h.", show_default="clones.ttl")
]
HeartbeatDuration = Annotated[
    str | None,
    option(
        "--heartbeat", "DURATION", "Destroy the clone after this long without `zsnapdb clone heartbeat`, such as 60s."
    ),
]
QuotaSize = Annotated[
    str | None, option("--quota", "SIZE", "Quota of the clone, for example 10GiB.", show_default="clones.quota")
]
CloneOwner = Annotated[
    str | None,
    option(
        "--owner",
        "NAME",
        "Owner of the clone: an account, or a name with a kind, such as ci:shop.",
        show_default="the caller",
    ),
]
ProfileChoice = Annotated[ProfileOption, flag("--profile", "Memory and processor time of the server.")]
BindAddress = Annotated[
    str | None, option("--bind", "ADDRESS", "Address on which the server listens.", show_default="clones.bind_address")
]
CloneCount = Annotated[
    int | None, option("--count", "N", "Create N clones of the same state, named NAME-1 to NAME-N.", show_default=False)
]
TopologyChoice = Annotated[
    TopologyOption,
    flag("--topology", "With --count: independent servers, or the first as replication source of the others."),
]
Mask = Annotated[bool, flag("--mask", "Mask the data before any login, even if the policy does not require it.")]
Admin = Annotated[
    bool, flag("--admin", "Grant users every privilege of the clone, also over server, files and accounts.")
]
NoStart = Annotated[
    bool, flag("--no-start", "Create datasets and files only; `zsnapdb clone start` starts the server.")
]

Fresh = Annotated[bool, flag("--fresh", "Create a new clone of the newest set even if the pool has one.")]


def _owner() -> str:
    import getpass
    import os

    return os.environ.get("SUDO_USER") or getpass.getuser()


def create(
    instance: options.InstanceName = None,
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
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    once: options.Once = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Clone a snapshot set and start a server on the clone.

    The server is isolated from its source. If the instance's pool has a ready clone, the command hands out that clone.

    With --once the command can be repeated: it shows the clone of that run, and creates no second clone.
    """
    from zsnapdb.jobs.backup.low_priority import at_low_priority

    # The source server runs on this host, and ten such commands may start at the same time.
    with at_low_priority():
        from zsnapdb.base.quantities import parse_duration, parse_size
        from zsnapdb.jobs.clone import request as requests

        _check_options(source, at, history, once, count)
        settings, chosen = instance_context(config, instance, binary=binary)
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
    _carry_out(settings, chosen, request, count, topology, once, plan=plan, json=json)


def _carry_out(
    settings: Settings,
    instance: Instance,
    request: CloneRequest,
    count: int | None,
    topology: TopologyOption,
    once: str | None,
    *,
    plan: bool,
    json: bool,
) -> None:
    from zsnapdb.jobs.backup.low_priority import at_low_priority

    with at_low_priority():
        from zsnapdb.jobs.clone import pool
        from zsnapdb.report.clone import create as report

    if count is not None or topology is not TopologyOption.independent:
        with contextlib.nullcontext() if plan else evidence_of(instance, "clone", request.name or ""):
            _create_set(settings, instance, request, count or 0, topology.value, plan=plan, json=json)
    elif not plan:
        _create_clone(settings, instance, request, once, json)
    elif (slot := pool.candidate(settings, instance, request)) is not None:
        show(report.HandOutPlanView(slot, request), json)
    else:
        from zsnapdb.jobs.clone import create_plan

        show(report.ClonePlanView(create_plan.plan(settings, instance, request)), json)


def _create_clone(settings: Settings, instance: Instance, request: CloneRequest, once: str | None, json: bool) -> None:
    from zsnapdb.jobs.clone import pool
    from zsnapdb.jobs.clone.request import random_name

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.clone import run_results as of_run

        known = of_run.created(settings, instance)
        return _answer(known) if known is not None else None

    def make() -> CommandAnswer:
        named = replace(request, name=request.name or random_name(instance))
        with evidence_of(instance, "clone", str(named.name)):
            result = pool.obtain(settings, instance, named)
        return _answer(result)

    def revealed(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
        from zsnapdb.jobs.clone import run_results as of_run

        return {**recorded, "password": of_run.password_of(settings, instance.host, recorded["clone"]["id"])}

    state = f"at {request.at}" if request.at is not None else f"from {request.source}"
    about = f"{instance.name} {state} as {request.name or 'any name'}"
    command = Repeatable("clone create", about, made=made, revealed=revealed, tell=instance.events.tell)
    show_once(instance.host, once, command, make, json)


def _create_set(
    settings: Settings, instance: Instance, request: CloneRequest, count: int, topology: str, *, plan: bool, json: bool
) -> None:
    from zsnapdb.jobs.clone import topology as job
    from zsnapdb.report.clone import create as report

    if plan:
        planned = job.plan_set(settings, instance, request, count, job.topology_of(topology))
        show(report.CloneSetPlanView(planned), json)
        return
    made = job.create_set(settings, instance, request, count, job.topology_of(topology))
    show(report.CloneSetView(made), json)


def _answer(created: Created) -> CommandAnswer:
    """Return the output of the command. The password is not recorded, because the clone's own file contains it."""
    from zsnapdb.report.clone.create import CreatedView

    return CommandAnswer(CreatedView(created), kept=CreatedView(created, is_secret=True))


def _check_options(source: str, at: str | None, history: str | None, once: str | None, count: int | None) -> None:
    if at is not None and source != "latest":
        raise typer.BadParameter("give --from or --at, not both")
    if history is not None and at is None:
        raise typer.BadParameter("--history needs --at")
    if once is not None and count is not None:
        raise typer.BadParameter(
            "--once applies to one clone; run one command, with its own --once id, for each clone of the set"
        )
