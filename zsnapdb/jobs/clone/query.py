"""Questions about the past, answered by ephemeral clones: the rows of a query, or a table compared at two moments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError, UnknownNameError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.random_values import fresh_password
from zsnapdb.jobs.clone import point_in_time
from zsnapdb.jobs.clone.create import OWNER, RunningClone, ephemeral_clone
from zsnapdb.jobs.clone.point_in_time import Moment, MomentMatch
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.mysql import accounts
from zsnapdb.mysql.schema import tables
from zsnapdb.mysql.session import Address, Row, Session
from zsnapdb.planning.clone import diff as planning
from zsnapdb.planning.clone.diff import Change, Column, DifferenceKind, RowCount, Shape
from zsnapdb.planning.sql_quoting import TableName, parse_table

_READER = "zsnapdb_reader"
_BATCH, _COMPARED_BATCH = 100, 1000
_LONGEST_SECONDS = 86400.0

Rows = Callable[[tuple[str, ...], Iterator[Row]], None]
"""Takes the column names, and the rows as they arrive."""

Changes = Callable[[Shape, Iterator[Change]], None]
"""Takes the compared columns, and the changes as they arrive."""


@dataclass(frozen=True)
class Answer:
    """The answer to a query: its moment, and the number of rows."""

    moment: Moment
    rows: int


@dataclass(frozen=True)
class Difference:
    """A table compared at two moments: the numbers of added, removed and changed rows."""

    table: str
    begin: Moment
    end: Moment
    shape: Shape
    added: int
    removed: int
    changed: int


def query(settings: Settings, instance: Instance, at: str, sql: str, emit: Rows, history: str | None = None) -> Answer:
    """Run one statement on an ephemeral clone of the moment `at`, and pass its rows to `emit` as they arrive.

    The statement runs in a read-only transaction, under an account that may only read. Afterwards the clone is
    destroyed. `history` is as for `state_at.find`.
    """
    moment = point_in_time.find(settings, instance, at, history)
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

    A name with a dot or a backtick is in backticks, as for a rescue. Memory use does not grow with the table.
    Afterwards both ephemeral clones are destroyed. `history` is the binlog history of each moment that is a time or
    GTIDs. `end_history` is the history of the later moment if it differs.

    Raises:
        PreflightError: the table has no primary key, or the key differs between the moments.
        UsageError: `history` is given, but neither moment is a time or GTIDs.
    """
    named = parse_table(table)
    schema, name = named.schema, str(named.table)
    if history is not None and not (point_in_time.takes_history(begin) or point_in_time.takes_history(end)):
        raise UsageError(f"--history does not apply to {begin} and {end}", hint="name a time or GTIDs with it")
    first = point_in_time.find(settings, instance, begin, history if point_in_time.takes_history(begin) else None)
    second = point_in_time.find(
        settings, instance, end, end_history or (history if point_in_time.takes_history(end) else None)
    )
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
    """Yield the rows of a table that differ between two servers, counted by kind. `seen` counts all rows."""
    seen = seen or (RowCount(), RowCount())
    queries = [planning.select(shape, one, table.schema, str(table.table)) for one in (shape.earlier, shape.common)]
    sides = zip(seen, sessions, queries, strict=True)
    rows = (passed.through(one.stream(sql, batch=_COMPARED_BATCH)[1]) for passed, one, sql in sides)
    return planning.count_changes(planning.merge(shape, *rows), counts)


@contextlib.contextmanager
def past(settings: Settings, instance: Instance, moment: Moment, *, of_users: bool = False) -> Iterator[Session]:
    """Yield a read-only session on an ephemeral clone of the moment. `of_users`: see `Session.open`."""
    at = moment.requested if moment.match is MomentMatch.REPLAY else None
    request = CloneRequest(owner=OWNER, source=moment.backup_id, at=at, point=moment.point)
    with ephemeral_clone(settings, instance, request) as clone, reading(clone, of_users=of_users) as session:
        yield session


@contextlib.contextmanager
def reading(clone: RunningClone, *, of_users: bool = False) -> Iterator[Session]:
    """Yield a session on the clone in a read-only transaction, under an account that may only read.

    `of_users`: see `Session.open`.
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
