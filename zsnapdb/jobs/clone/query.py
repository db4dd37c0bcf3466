"""Queries a past state of the data on an ephemeral clone, and chooses the state for the requested moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import (
    AmbiguousPointError,
    HistoryError,
    NotFound,
    PreflightError,
    RepositoryError,
    UnknownNameError,
    UsageError,
    ZsnapdbError,
)
from zsnapdb.base.gtid import Gtids, contains
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import fresh_password
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import LOCAL, POSITION_PROPERTY, STORED
from zsnapdb.jobs.clone.create import OWNER, RunningClone, ephemeral_clone
from zsnapdb.jobs.clone.create_plan import plan
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.host.local_snapshot_sets import described_sets
from zsnapdb.mysql import accounts
from zsnapdb.mysql.schema import tables
from zsnapdb.mysql.session import Address, Row, Session
from zsnapdb.planning.clone import diff as planning
from zsnapdb.planning.clone.diff import Change, Column, DifferenceKind, RowCount, Shape
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.point_forms import AtBackup, AtTime, BeforeGtid, Latest, ago, parse_target
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import TableName, parse_table


@dataclass(frozen=True)
class Candidate:
    """A snapshot set with its creation time (UTC, to the second) and its position."""

    backup_id: str
    made: datetime
    position: str


class MomentMatch(StrEnum):
    """The way in which the chosen state matches the requested moment.

    - snapshot: a snapshot set has exactly the state of the moment
    - replay: a replay of archived binlogs ends at exactly the moment
    - nearest: the snapshot set is the newest before the moment
    """

    SNAPSHOT = "snapshot"
    REPLAY = "replay"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Moment:
    """The snapshot set for a requested moment, and how the set matches the moment.

    `made` (UTC) is the time of the snapshot set. `reason` says why only the nearest set is available. `point` is the
    plan of a replay. `history` is the binlog history that the user named for the moment, or None.
    """

    requested: str
    backup_id: str
    made: datetime | None
    position: str
    match: MomentMatch
    reason: str = ""
    point: RestorePlan | None = None
    history: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the chosen state is exactly the state of the requested moment."""
        return self.match is not MomentMatch.NEAREST

    def describe(self) -> str:
        """Describe in one line how the state matches the requested moment."""
        made = f", made {self.made:%Y-%m-%d %H:%M:%S} UTC" if self.made is not None else ""
        if self.match is MomentMatch.REPLAY:
            binlogs = "the archived binlogs" + (f" of history {self.history}" if self.history else "")
            return f"{self.backup_id} and {binlogs} up to {self.requested}: exactly the requested moment"
        if self.match is MomentMatch.SNAPSHOT:
            return f"{self.backup_id}{made}: exactly the requested moment"
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.backup_id}{made}: the newest snapshot set at or before {self.requested}; later transactions are"
            f" missing{why}"
        )


def find_moment(settings: Settings, instance: Instance, requested: str, history: str | None = None) -> Moment:
    """Return the state for the requested moment.

    The moment is written like a restore's point (`planning/restore/point_forms.py`), with the same meaning. `latest` is
    the end of the archive or the newest snapshot set on this host, whichever is newer; `latest-backup` is the newest
    snapshot set. A state between two snapshot sets is reached by a replay if the archive contains the binlogs.
    Otherwise the nearest earlier snapshot set on this host is returned, with the reason. `history` is the id of the
    binlog history to which the time or the GTIDs belong. Other histories are ignored.

    Raises:
        NotFound: no snapshot set on this host is early enough.
        AmbiguousPointError: several histories of the server contain the moment with different states, and `history` is
            None. This can also happen for the GTIDs of a snapshot set, because a restored server assigns the same GTIDs
            to other transactions.
    """
    instance = with_volumes(instance)
    candidates = _candidates(instance)
    requested = ago(requested, instance.host.now())
    target = parse_target(requested)
    is_set = isinstance(target, AtBackup)
    try:
        nearest: Moment | None = choose(candidates, requested)
    except NotFound:
        if is_set:
            raise
        nearest = None
    if is_set and history is not None:
        raise UsageError(f"--history does not apply to {requested}", hint="name a time, GTIDs or `latest` with it")
    if is_set and nearest is not None:
        return nearest
    request = CloneRequest(owner="zsnapdb", name="past-planned", at=requested, history=history)
    try:
        planned = plan(settings, instance, request)
    except ZsnapdbError as error:
        if history is not None:
            raise
        return _without_replay(error, nearest, candidates, requested)
    made_from = planned.made_from
    point = made_from.source if isinstance(made_from.source, RestorePlan) else None
    if (
        isinstance(target, Latest)
        and history is None
        and nearest is not None
        and not reaches_beyond(point, nearest, [local.backup_id for local in candidates])
    ):
        return replace(nearest, match=MomentMatch.SNAPSHOT)
    exact = next((local for local in candidates if local.backup_id == made_from.set_id), None)
    if exact is not None and made_from.replays == 0:
        return _moment(requested, exact, exact=True)
    if history is None and nearest is not None and nearest.is_exact:
        return nearest
    return Moment(requested, made_from.set_id, None, "", MomentMatch.REPLAY, point=point, history=history)


def reaches_beyond(point: RestorePlan | None, newest: Moment, here: Sequence[str]) -> bool:
    """Return whether the archive ends after the newest snapshot set on this host.

    `here` contains the ids of the sets on this host. If the replay begins with the newest set, it ends after this set.
    Otherwise the GTIDs are compared. If there are no GTIDs, the times are compared, and the archive is preferred if
    both times are in the same second.
    """
    if point is None:
        return False
    # The plan chose the newest backup or set, so a backup that is not on this host is newer than all sets on this host.
    if point.backup_id not in here:
        return True
    last = point.point.last
    if last is None or point.backup_id == newest.backup_id:
        return last is not None
    reached, stands = _gtids(point.point.gtids or ""), _gtids(newest.position.rpartition(" ")[2])
    if reached is not None and stands is not None:
        return contains(reached, stands) and not contains(stands, reached)
    return newest.made is not None and last.committed >= newest.made


def takes_history(requested: str) -> bool:
    """Return whether a binlog history can be named for the requested moment.

    That is possible for a time or GTIDs, but not for a backup or `latest`.
    """
    return not isinstance(parse_target(requested), Latest | AtBackup)


def _candidates(instance: Instance) -> list[Candidate]:
    return [
        Candidate(
            local.set.backup_id,
            datetime.fromtimestamp(int(local.properties["creation"]), UTC),
            local.properties[POSITION_PROPERTY],
        )
        for local in described_sets(instance, STORED, LOCAL, more=("creation", POSITION_PROPERTY))
    ]


def _without_replay(
    error: ZsnapdbError, nearest: Moment | None, candidates: Sequence[Candidate], requested: str
) -> Moment:
    """Return the snapshot set to use if a replay to the moment is impossible. Raise `error` if no set may be used."""
    if isinstance(error, AmbiguousPointError):
        raise error
    if nearest is not None and nearest.is_exact:
        return nearest
    if not isinstance(error, HistoryError | RepositoryError | PreflightError | UsageError):
        raise error
    return choose(candidates, requested) if nearest is None else replace(nearest, reason=error.message)


def choose(candidates: Sequence[Candidate], requested: str) -> Moment:
    """Return the candidate to use for the requested moment. The candidates are ordered, oldest first.

    Raises:
        NotFound: no set is early enough.
    """
    if not candidates:
        raise NotFound("there is no snapshot set on this host", hint="run `zsnapdb backup` to make a snapshot set")
    target = parse_target(requested)
    if isinstance(target, Latest):
        return _moment(requested, candidates[-1], exact=False)
    if isinstance(target, AtBackup):
        newest = target.backup_id is None
        named = candidates if newest else [c for c in candidates if c.backup_id == requested]
        if not named:
            raise NotFound(
                f"no snapshot set {requested} on this host",
                hint=f"the newest are {', '.join(c.backup_id for c in candidates[-5:])}",
            )
        return _moment(requested, named[-1], exact=True)
    if isinstance(target, BeforeGtid):
        return _before(candidates, target, requested)
    if isinstance(target, AtTime):
        early = [c for c in candidates if c.made <= target.moment]
        # A set from the requested second may be earlier or later than the moment, so it does not match exactly.
        return _moment(requested, early[-1] if early else _too_old(requested, candidates), exact=False)
    gtids = _gtids(target.text)
    assert gtids is not None, "a target of GTIDs has some"
    early = [
        c
        for c in candidates
        if (stands := _gtids(c.position.rpartition(" ")[2])) is not None and contains(gtids, stands)
    ]
    chosen = early[-1] if early else _too_old(requested, candidates)
    stands = _gtids(chosen.position.rpartition(" ")[2])
    return _moment(requested, chosen, exact=stands == gtids)


def _before(candidates: Sequence[Candidate], target: BeforeGtid, requested: str) -> Moment:
    """Return the newest set without the transaction. Only a replay can end directly before the transaction."""
    gtids = next((parsed for flavour in Flavour if (parsed := _as_written(flavour, target.text)) is not None), None)
    assert gtids is not None, "a target before a transaction has its GTID"
    early = [
        c
        for c in candidates
        if (stands := _gtids(c.position.rpartition(" ")[2])) is not None and not contains(stands, gtids)
    ]
    return _moment(requested, early[-1] if early else _too_old(requested, candidates), exact=False)


def _as_written(flavour: Flavour, text: str) -> Gtids | None:
    try:
        parsed = parse_gtids(flavour, text)
    except ValueError:
        return None
    return parsed if str(parsed) else None


def _moment(requested: str, chosen: Candidate, *, exact: bool) -> Moment:
    return Moment(
        requested,
        chosen.backup_id,
        chosen.made,
        chosen.position,
        MomentMatch.SNAPSHOT if exact else MomentMatch.NEAREST,
    )


def _too_old(requested: str, candidates: Sequence[Candidate]) -> Candidate:
    oldest = candidates[0]
    raise NotFound(
        f"no snapshot set on this host is at or before {requested}",
        hint=(
            f"the oldest is {oldest.backup_id}, made {oldest.made:%Y-%m-%dT%H:%M:%SZ}; restore an older state from the"
            " repository"
        ),
    )


def _gtids(text: str) -> Gtids | None:
    """Return the GTIDs in the text. A state has no gaps, so a MySQL GTID includes all lower numbers."""
    for flavour in Flavour:
        try:
            gtids = parse_gtids(
                flavour,
                ",".join(_from_first(part) for part in text.split(",")) if family(flavour).gtids_are_sets else text,
            )
        except ValueError:
            continue
        if str(gtids):
            return gtids
    return None


def _from_first(part: str) -> str:
    source, colon, number = part.rpartition(":")
    return f"{source}:1-{number}" if colon and number.isdecimal() and ":" not in source and int(number) > 1 else part


_READER = "zsnapdb_reader"
_BATCH, _COMPARED_BATCH = 100, 1000
_LONGEST_SECONDS = 86400.0
Rows = Callable[[tuple[str, ...], Iterator[Row]], None]
"""Function that is called with the column names, and with an iterator that yields the rows as they arrive."""
Changes = Callable[[Shape, Iterator[Change]], None]
"""Function that is called with the compared columns, and with an iterator that yields the changes as they arrive."""


@dataclass(frozen=True)
class Answer:
    """The result of a query: the moment, and the number of rows."""

    moment: Moment
    rows: int


@dataclass(frozen=True)
class Difference:
    """The result of comparing a table at two moments: the numbers of added, removed and changed rows."""

    table: str
    begin: Moment
    end: Moment
    shape: Shape
    added: int
    removed: int
    changed: int


def query(settings: Settings, instance: Instance, at: str, sql: str, emit: Rows, history: str | None = None) -> Answer:
    """Run one statement on an ephemeral clone of the moment `at`, and pass its rows to `emit` as they arrive.

    The account may only read, and the statement runs in a read-only transaction. Afterwards the clone is destroyed. For
    `history`, see `find_moment`.
    """
    moment = find_moment(settings, instance, at, history)
    counted = RowCount()
    with past(settings, instance, moment, of_users=True) as session:
        columns, rows = session.stream(sql, batch=_BATCH, times_as_text=True)
        emit(columns, counted.through(rows))
    return Answer(moment, counted.number)


def diff(
    settings: Settings,
    instance: Instance,
    table: str,
    begin: str,
    end: str,
    emit: Changes,
    *,
    history: str | None = None,
    end_history: str | None = None,
) -> Difference:
    """Compare a table (schema.name) at two moments by its primary key, and pass the changes to `emit` as they arrive.

    A name that contains a dot or a backtick must be written in backticks, as for a rescue. The memory use does not
    depend on the size of the table. Afterwards both ephemeral clones are destroyed. `history` is the binlog history of
    both moments, if they are times or GTIDs. For the later moment, `end_history` overrides `history`.

    Raises:
        PreflightError: the table has no primary key, or the key differs between the moments.
        UsageError: `history` is given, but neither moment is a time or GTIDs.
    """
    named = parse_table(table)
    schema, name = named.schema, str(named.table)
    if history is not None and not (takes_history(begin) or takes_history(end)):
        raise UsageError(f"--history does not apply to {begin} and {end}", hint="name a time or GTIDs with it")
    first = find_moment(settings, instance, begin, history if takes_history(begin) else None)
    second = find_moment(settings, instance, end, end_history or (history if takes_history(end) else None))
    if first.backup_id == second.backup_id and MomentMatch.REPLAY not in (first.match, second.match):
        raise PreflightError(
            f"{begin} and {end} are both the snapshot set {first.backup_id}",
            hint="choose another snapshot set of `zsnapdb list`, or make one: `zsnapdb backup`",
        )
    counts = dict.fromkeys(DifferenceKind, 0)
    with past(settings, instance, first) as old, past(settings, instance, second) as new:
        shape = planning.shape(_columns(old, schema, name, first), _columns(new, schema, name, second), table)
        emit(shape, row_changes(named, shape, (old, new), counts))
    return Difference(table, first, second, shape, *(counts[kind] for kind in DifferenceKind))


def row_changes(
    table: TableName,
    shape: Shape,
    sessions: tuple[Session, Session],
    counts: dict[DifferenceKind, int],
    seen: tuple[RowCount, RowCount] | None = None,
) -> Iterator[Change]:
    """Yield the rows of a table that differ between two servers.

    Count the differences by kind in `counts`, and the rows that were read in `seen`.
    """
    seen = seen or (RowCount(), RowCount())
    queries = [planning.select(shape, one, table.schema, str(table.table)) for one in (shape.earlier, shape.common)]
    sides = zip(seen, sessions, queries, strict=True)
    rows = (passed.through(one.stream(sql, batch=_COMPARED_BATCH)[1]) for passed, one, sql in sides)
    return planning.count_changes(planning.merge(shape, *rows), counts)


@contextlib.contextmanager
def past(settings: Settings, instance: Instance, moment: Moment, *, of_users: bool = False) -> Iterator[Session]:
    """Yield a read-only session on an ephemeral clone of the moment. For `of_users`, see `Session.open`."""
    at = moment.requested if moment.match is MomentMatch.REPLAY else None
    request = CloneRequest(owner=OWNER, source=moment.backup_id, at=at, point=moment.point)
    with ephemeral_clone(settings, instance, request) as clone, reading(clone, of_users=of_users) as session:
        yield session


@contextlib.contextmanager
def reading(clone: RunningClone, *, of_users: bool = False) -> Iterator[Session]:
    """Yield a session on the clone in a read-only transaction, under an account that may only read.

    For `of_users`, see `Session.open`.
    """
    password = fresh_password()
    with clone.session() as session:
        accounts.make_reader(session, _READER, password)
    address = Address(_READER, clone.process.socket)
    with Session.open(address, password, read_timeout=_LONGEST_SECONDS, of_users=of_users) as session:
        accounts.read_only_transaction(session, clone.info.flavour)
        yield session


def _columns(session: Session, schema: str, name: str, moment: Moment) -> list[Column]:
    columns = tables.columns(session, schema, name)
    if not columns:
        raise UnknownNameError(
            f"there is no table {schema}.{name} in {moment.backup_id}",
            hint="give the table as schema.table, with its name at that moment",
        )
    return columns
