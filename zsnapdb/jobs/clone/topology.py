"""Sets of clones: several servers from one snapshot set.

The servers are independent, or one of them is the replication source of the others.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, replace

from zsnapdb.base.errors import ConsistencyError, ServerError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import Host, fresh_password
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, create_plan, destroy, locks
from zsnapdb.jobs.clone.clone_info import FOLLOWS_PROPERTY, SET_PROPERTY, SOURCE_PART
from zsnapdb.jobs.clone.create import RunningClone, make_running
from zsnapdb.jobs.clone.create_plan import ClonePlan
from zsnapdb.jobs.clone.request import CloneRequest, random_name
from zsnapdb.jobs.clone.sources import LATEST
from zsnapdb.mysql import accounts
from zsnapdb.mysql.replication import channels
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone import topology as planning
from zsnapdb.planning.clone.isolation import REPLICA_ACCOUNT as _ACCOUNT
from zsnapdb.planning.clone.topology import CloneTopology
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.zfs import datasets

_ARRIVAL_SECONDS = 60.0


@dataclass(frozen=True)
class SetMember:
    """A clone in a set, and its role in the set (source, replica or member)."""

    clone: RunningClone
    part: str


@dataclass(frozen=True)
class CloneSet:
    """A set of running clones.

    `arrival_seconds` is the time in seconds until a row of the source reached the last replica, or None without
    replication.
    """

    name: str
    topology: CloneTopology
    members: tuple[SetMember, ...]
    arrival_seconds: float | None


def topology_of(name: str) -> CloneTopology:
    """Return the topology of a set with the given name."""
    return CloneTopology(name)


@dataclass(frozen=True)
class SetPlan:
    """The plan of `create_set`: the names of the clones, source first, and the plan of the first clone."""

    names: tuple[str, ...]
    topology: CloneTopology
    first: ClonePlan


def plan_set(
    settings: Settings, instance: Instance, request: CloneRequest, count: int, topology: CloneTopology
) -> SetPlan:
    """Return the plan of `create_set`; change nothing.

    Raises:
        UsageError: the request is not possible for a set.
        PreflightError: the first clone cannot be created, or its source has no binlog or GTIDs for replication.
    """
    if not request.starts:
        raise UsageError(
            "the servers of a set are always started", hint="leave out --no-start, or make the clones one by one"
        )
    name = request.name or random_name(instance)
    names = planning.names(name, count, topology)
    # A clone and a set must not have the same name, because `destroy` accepts the names of both.
    catalogue.refuse_label(catalogue.claims(settings).copies, name)
    if request.heartbeat is not None:
        raise UsageError(
            "a set of clones cannot have a heartbeat: nothing could send it for the first clones while the others are"
            " created",
            hint="give the set a --ttl, or make the clones one by one",
        )
    first = create_plan.plan(settings, instance, replace(request, name=names[0]))
    if topology is CloneTopology.REPLICATION:
        has_binlog = first.origin.variables.get("log_bin") == "ON"
        planning.refuse_without_gtids(first.origin.flavour, has_binlog=has_binlog, has_gtids=first.origin.has_gtids)
    return SetPlan(names, topology, first)


def create_set(
    settings: Settings, instance: Instance, request: CloneRequest, count: int, topology: CloneTopology
) -> CloneSet:
    """Create the requested clones NAME-1 to NAME-`count` from one snapshot set.

    With replication, the first clone is the source of all others. A test row on the source must arrive at every
    replica. If an error occurs, no clone of the set remains.
    """
    planned = plan_set(settings, instance, request, count, topology)
    name = planned.names[0].rpartition("-")[0]
    next_request = replace(_as_planned(request, planned.first), requested=request.names_source)
    made: list[RunningClone] = []
    with undone_on_error(lambda: _destroy_all(settings, instance.host, made)):
        for member in planned.names:
            follows = made[0].info.port if made and topology is CloneTopology.REPLICATION else None
            made.append(make_running(settings, instance, replace(next_request, name=member, follows=follows)))
            catalogue.refuse_other_data(made[0].info, made[-1].info)
            # All other clones are created from the first clone's snapshot set, so that a point in time is restored only
            # once.
            next_request = replace(next_request, source=made[0].info.original, at=None, point=None)
            instance.events.tell(f"clone {member} runs on port {made[-1].info.port}")
        seconds = _start_replication(made) if topology is CloneTopology.REPLICATION else None
        members = []
        with locks.names_and_ports():
            # Meanwhile another user may have created a clone with the name of the set.
            others = [one for one in catalogue.claims(settings).copies if one.name not in planned.names]
            catalogue.refuse_label(others, name)
            for number, clone in enumerate(made):
                part = "member" if topology is CloneTopology.INDEPENDENT else SOURCE_PART if number == 0 else "replica"
                source = {FOLLOWS_PROPERTY: str(made[0].info.port)} if part == "replica" else {}
                datasets.set_properties(clone.info.top, {SET_PROPERTY: f"{name} {part}", **source})
                members.append(SetMember(clone, part))
    return CloneSet(name, topology, tuple(members), seconds)


def _as_planned(request: CloneRequest, planned: ClonePlan) -> CloneRequest:
    """Return the request with the source from the plan: the backup chosen for `latest`, or the plan of the replay."""
    if isinstance(planned.made_from.source, RestorePlan):
        return replace(request, point=planned.made_from.source)
    return replace(request, source=planned.made_from.set_id) if request.source == LATEST else request


def _destroy_all(settings: Settings, host: Host, made: list[RunningClone]) -> None:
    failures = []
    for clone in reversed(made):
        try:
            destroy.destroy_own(settings, host, clone.info.name)
        except Exception as error:
            failures.append(str(error))
    if failures:
        raise ServerError("; ".join(failures))


def _start_replication(made: list[RunningClone]) -> float:
    """Make the other clones replicas of the first one. Return the seconds until a row reached the last replica."""
    password = fresh_password()
    source = made[0]
    with source.session() as session:
        # Do not write the account to the binlog: replicas do not need it, and replication must start at the position of
        # the snapshot set.
        accounts.make_replicator(session, _ACCOUNT, password)
    for replica in made[1:]:
        with replica.session() as session:
            channels.follow_neighbour(session, source.info.port, _ACCOUNT, password.get_secret_value())
    return _prove_replication(source, made[1:])


def _prove_replication(source: RunningClone, replicas: list[RunningClone]) -> float:
    """Write a row, check that every replica gets it, and remove it. Return the seconds that the last replica needed."""
    token = secrets.token_hex(8)
    with source.session() as session, contextlib.ExitStack() as opened:
        sessions = [
            (replica, opened.enter_context(replica.session(read_timeout=2 * _ARRIVAL_SECONDS))) for replica in replicas
        ]
        began = time.monotonic()
        channels.write_check_row(session, token)
        _wait_for_all(session, sessions)
        seconds = time.monotonic() - began
        for replica, replica_session in sessions:
            arrived = channels.check_rows(replica_session)
            if arrived != [token]:
                raise ConsistencyError(
                    f"replica {replica.info.name} has the rows {arrived}, not the row that its source wrote",
                    hint="the set was removed; report this error",
                )
        channels.remove_check_rows(session)
        _wait_for_all(session, sessions)
    return seconds


def _wait_for_all(source: Session, replicas: list[tuple[RunningClone, Session]]) -> None:
    """Wait until every replica has applied all present transactions of the source.

    Raises:
        ConsistencyError: a replica did not apply the transactions in time; the message contains the replica's errors.
    """
    reached = channels.reached(source)
    for replica, session in replicas:
        if not channels.has_reached(session, reached, _ARRIVAL_SECONDS):
            errors = channels.applier_errors(session)
            raise ConsistencyError(
                f"replica {replica.info.name} did not reach {reached} within {_ARRIVAL_SECONDS:.0f} s:"
                f" {'; '.join(errors) or 'the replica reports no error'}",
                hint="the set was removed, with the logs of its servers; make the set again",
            )
