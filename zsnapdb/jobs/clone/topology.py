"""Sets of clones: several servers from one snapshot set, independent or wired as a source and its replicas."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, replace

from zsnapdb.config import Settings
from zsnapdb.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.jobs.clone import create
from zsnapdb.jobs.clone.create import ClonePlan, CloneRequest
from zsnapdb.jobs.clone.ephemeral import Served, end, make
from zsnapdb.jobs.clone.properties import FOLLOWS_PROPERTY
from zsnapdb.jobs.clone.sources import LATEST
from zsnapdb.jobs.fresh import fresh_password
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.undo import undone_on_error
from zsnapdb.model import PROPERTY
from zsnapdb.mysql import accounts, applier, arrival
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone import topology as planning
from zsnapdb.planning.clone.contract import REPLICA_ACCOUNT as _ACCOUNT
from zsnapdb.planning.clone.topology import CloneTopology
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.zfs import datasets

SET_PROPERTY = f"{PROPERTY}:set"
"""On the top dataset of a set's clone: the set's name and the clone's part (source, replica, member)."""

_ARRIVAL_SECONDS = 60.0


@dataclass(frozen=True)
class Member:
    """A clone of a set and its part in it."""

    clone: Served
    part: str


@dataclass(frozen=True)
class CloneSet:
    """A set of running clones.

    `arrival_seconds`: how long a row took from the source to the last replica; None where none replicates.
    """

    name: str
    topology: CloneTopology
    members: tuple[Member, ...]
    arrival_seconds: float | None


def topology_of(name: str) -> CloneTopology:
    """Return the topology of that name."""
    return CloneTopology(name)


@dataclass(frozen=True)
class SetPlan:
    """What making a set does: its names, the source first, and what is done for the first of them."""

    names: tuple[str, ...]
    topology: CloneTopology
    first: ClonePlan


def plan_set(
    settings: Settings, instance: Instance, wish: CloneRequest, count: int, topology: CloneTopology
) -> SetPlan:
    """Return what `create_set` would do; changes nothing.

    PreflightError for what makes no set, and for what would be refused of its first clone.
    """
    if not wish.starts:
        raise PreflightError("the clones of a set are started", hint="leave out --no-start, or make clones one by one")
    names = planning.names(wish.name or f"{instance.name}-{secrets.token_hex(3)}", count, topology)
    first = create.plan(settings, instance, replace(wish, name=names[0]))
    if topology is CloneTopology.REPLICATION:
        has_binlog = first.origin.variables.get("log_bin") == "ON"
        planning.refuse_without_gtids(first.origin.flavour, has_binlog=has_binlog, has_gtids=first.origin.has_gtids)
    return SetPlan(names, topology, first)


def create_set(
    settings: Settings,
    instance: Instance,
    wish: CloneRequest,
    count: int,
    topology: CloneTopology,
) -> CloneSet:
    """Make `count` clones NAME-1 … as wished for, of one snapshot set.

    With replication the first is the source of all others, proved by a row that arrives.

    All are there and right, or none.
    """
    planned = plan_set(settings, instance, wish, count, topology)
    name = planned.names[0].rpartition("-")[0]
    next_wish = _as_planned(wish, planned.first)
    made: list[Served] = []
    with undone_on_error(lambda: _end_all(settings, made)):
        for member in planned.names:
            made.append(make(settings, instance, replace(next_wish, name=member)))
            # All others are made of what the first one was made of: a point is reached once.
            next_wish = replace(next_wish, source=made[0].info.backup_id, at=None, point=None)
            instance.events.tell(f"clone {member} runs on port {made[-1].info.port}")
        seconds = _wire(made) if topology is CloneTopology.REPLICATION else None
        members = []
        for number, clone in enumerate(made):
            part = "member" if topology is CloneTopology.INDEPENDENT else "source" if number == 0 else "replica"
            follows = {FOLLOWS_PROPERTY: str(made[0].info.port)} if part == "replica" else {}
            datasets.set_properties(clone.info.top, {SET_PROPERTY: f"{name} {part}", **follows})
            members.append(Member(clone, part))
    return CloneSet(name, topology, tuple(members), seconds)


def _as_planned(wish: CloneRequest, planned: ClonePlan) -> CloneRequest:
    """Return the request for exactly what the plan found: that backup for `latest`, that way to a point in time."""
    if isinstance(planned.source, RestorePlan):
        return replace(wish, point=planned.source)
    return replace(wish, source=planned.set_id) if wish.source == LATEST else wish


def _end_all(settings: Settings, made: list[Served]) -> None:
    failures = []
    for clone in reversed(made):
        try:
            end(settings, clone.info.name)
        except Exception as error:
            failures.append(str(error))
    if failures:
        raise ServerError("; ".join(failures))


def _wire(made: list[Served]) -> float:
    """Make the first clone the source of the others.

    Return in how many seconds a row of its arrived at the last of them.
    """
    password = fresh_password()
    source = made[0]
    with source.session() as session:
        # Not in the binlog: the replicas need no account that comes by replication, and the set begins where its
        # snapshot was.
        accounts.make_replicator(session, _ACCOUNT, password)
    for replica in made[1:]:
        with replica.session() as session:
            applier.follow_neighbour(session, source.info.port, _ACCOUNT, password.get_secret_value())
    return _prove(source, made[1:])


def _prove(source: Served, replicas: list[Served]) -> float:
    """Write a row at the source, see it at every replica, remove it again everywhere.

    Return how long it took to the last of them, in seconds.
    """
    token = secrets.token_hex(8)
    with source.session() as session, contextlib.ExitStack() as opened:
        sessions = [
            (replica, opened.enter_context(replica.session(read_timeout=2 * _ARRIVAL_SECONDS))) for replica in replicas
        ]
        began = time.monotonic()
        arrival.write_row(session, token)
        _wait_for_all(session, sessions)
        seconds = time.monotonic() - began
        for replica, its in sessions:
            arrived = arrival.rows(its)
            if arrived != [token]:
                raise ConsistencyError(
                    f"replica {replica.info.name} has {arrived}, not the row its source wrote",
                    hint="the set was removed; report this",
                )
        arrival.remove_rows(session)
        _wait_for_all(session, sessions)
    return seconds


def _wait_for_all(source: Session, replicas: list[tuple[Served, Session]]) -> None:
    """Wait until every replica has applied what the source has now.

    ConsistencyError with the replica's own words if one does not.
    """
    reached = arrival.reached(source)
    for replica, session in replicas:
        if not arrival.has_reached(session, reached, _ARRIVAL_SECONDS):
            errors = arrival.errors(session)
            raise ConsistencyError(
                f"replica {replica.info.name} did not reach {reached} within {_ARRIVAL_SECONDS:.0f} s:"
                f" {'; '.join(errors) or 'it tells no error'}",
                hint="the set was removed; its servers' logs went with it",
            )
