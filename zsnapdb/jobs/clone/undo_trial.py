"""Tests an undo on clones of three states: directly before the transaction, directly after the transaction, and now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ConsistencyError, PreflightError, ServerError, ZsnapdbError
from zsnapdb.base.quantities import quantity
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import source_fetch
from zsnapdb.jobs.clone.create import OWNER, ephemeral_clone
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.source_lookup import home_for
from zsnapdb.jobs.clone.sources import LIVE_STATE, with_volumes
from zsnapdb.jobs.restore.offline_repository import offline_repository, open_for_restore
from zsnapdb.mysql.schema.definitions import TableShapes
from zsnapdb.mysql.schema.tables import exact_rows, referring_rows
from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.planning.binlog.row_values import TableShape, shape_difference
from zsnapdb.planning.binlog.undo import (
    Expectation,
    RowChange,
    RowQuestion,
    StateBefore,
    count_difference,
    needs_same_definition,
    proven_changes,
    questions,
    tables_of,
)
from zsnapdb.planning.restore.plan import RestoreOrigin, RestorePlan

_LONGEST_SECONDS = 86400.0


@dataclass(frozen=True)
class UndoProof:
    """The result of a successful test: the changes, one for each changed row, and these rows before the transaction."""

    changes: tuple[RowChange, ...]
    before: StateBefore


def prove(settings: Settings, instance: Instance, gtid: str, logged: Sequence[RowChange]) -> UndoProof:
    """Test the statements that undo a transaction.

    `logged` contains the transaction's changes as recorded in the binlog.

    Raises:
        PreflightError: a table had another definition when the transaction ran, one of the three states cannot be
            created, or the statements fail on the clone of the present state.
        ConsistencyError: a row of that clone does not have its old value after the statements.
    """
    if instance.settings.masking.required:
        raise PreflightError(
            f"an undo on instance {instance.name} cannot be proved: masking.required masks the rows of every clone",
            hint="restore to another dataset (`zsnapdb restore`), and compare the rows there",
        )
    before = _before(settings, instance, gtid, logged)
    with _state(settings, instance, gtid, gtid) as session:
        _refuse_others(session, planning.expectations(logged), gtid, "after")
        after = exact_rows(session, before.questions, gtid)
    difference = count_difference(logged, before.questions, before.rows, after)
    if difference is not None:
        raise ConsistencyError(
            f"the row counts of the binlog and the clones differ: {difference}",
            hint=planning.rescue_hint(gtid, _names(logged)),
        )
    changes = proven_changes(before.questions, before.rows, after)
    changed, others = before.split(after)
    _try(settings, instance, gtid, changes, changed, others)
    return UndoProof(changes, changed)


def _before(settings: Settings, instance: Instance, gtid: str, logged: Sequence[RowChange]) -> StateBefore:
    """Return the state directly before the transaction, including the rows that foreign keys may have changed."""
    with _state(settings, instance, f"before-{gtid}", gtid) as session, instance.session() as live:
        tables = _Tables(gtid, TableShapes(session), TableShapes(live))
        for shape in tables_of(logged):
            tables.add(shape.schema, shape.table)
        for statement in planning.SESSION:
            session.query(statement)
        _refuse_others(session, planning.undone(logged), gtid, "before")
        asked: dict[str, RowQuestion] = {}
        for question in questions(logged):
            _ask(session, tables, question, asked)
        every = tuple(asked.values())
        _object(gtid, needs_same_definition(logged, every, tables.then), _names(logged))
        return StateBefore(tuple(tables.then.values()), every, exact_rows(session, every, gtid))


class _Tables:
    """The definitions of tables directly before the transaction. Each must equal the table's present definition."""

    def __init__(self, gtid: str, then: TableShapes, now: TableShapes) -> None:
        self.then: dict[str, TableShape] = {}
        self.now: dict[str, TableShape] = {}
        self.gtid, self._then, self._now = gtid, then, now

    def add(self, schema: str, table: str) -> TableShape:
        """Return the present definition of a table.

        Raises:
            PreflightError: the table had another definition, or its definition prevents an undo.
        """
        now = self._now.read(schema, table)
        if now.name not in self.then:
            _object(self.gtid, planning.shape_objection(now), [now.name])
            then = self._then.read(schema, table)
            _object(self.gtid, shape_difference(then, now), [now.name])
            self.then[now.name], self.now[now.name] = then, now
        return self.now[now.name]


def _ask(session: Session, tables: _Tables, question: RowQuestion, asked: dict[str, RowQuestion]) -> None:
    """Add a query for a row to `asked`. First add queries for the rows that foreign keys change with that row."""
    waiting, found = [question], list[RowQuestion]()
    while waiting:
        one = waiting.pop()
        if one.sql in asked or one in found:
            continue
        found.append(one)
        if len(asked) + len(found) > planning.MOST_ROWS:
            raise PreflightError(
                f"the transaction changed more than {planning.MOST_ROWS} rows",
                hint=planning.rescue_hint(tables.gtid, [one.shape.name]),
            )
        for key in one.shape.cascades:
            waiting += referring_rows(session, one, key, tables.add(key.schema, key.table))
    asked.update((one.sql, one) for one in reversed(found))


def _refuse_others(session: Session, expected: Sequence[Expectation], gtid: str, when: str) -> None:
    for statement in planning.SESSION:
        session.query(statement)
    wrong = [one for one in expected if bool(session.query(one.question)) is one.is_absent]
    if wrong:
        raise ConsistencyError(
            f"{len(wrong)} rows of a clone right {when} transaction {gtid} differ from the binlog, the first in"
            f" {wrong[0].change.shape.name}: a definition was changed outside of the binlog",
            hint=planning.rescue_hint(gtid, [wrong[0].change.shape.name]),
        )


def _names(changes: Sequence[RowChange]) -> list[str]:
    return [shape.name for shape in tables_of(changes)]


def _object(gtid: str, objection: str | None, tables: Sequence[str]) -> None:
    if objection is not None:
        raise PreflightError(
            f"transaction {gtid} cannot be undone by rows: {objection}", hint=planning.rescue_hint(gtid, tables)
        )


def _try(
    settings: Settings,
    instance: Instance,
    gtid: str,
    changes: Sequence[RowChange],
    before: StateBefore,
    others: Sequence[RowQuestion],
) -> None:
    """Undo the changes on a clone of the present state. The rows in `others` must stay as they are there."""
    instance.events.tell(f"testing the undo of {quantity(len(changes), 'row')} on a clone of the current data")
    with (
        ephemeral_clone(settings, instance, CloneRequest(OWNER, source=LIVE_STATE)) as clone,
        clone.session(read_timeout=_LONGEST_SECONDS) as session,
    ):
        present = exact_rows(session, others, gtid)
        try:
            for statement in planning.statements(changes):
                session.query(statement)
        except ServerError as error:
            raise PreflightError(
                f"the script failed on a clone of the server: {error.message}",
                hint="a row was changed since, or another table refuses its undo; nothing on the server was changed",
            ) from error
        wrong = before.row_difference(exact_rows(session, before.questions, gtid))
        if exact_rows(session, others, gtid) != present:
            wrong = "a row that the transaction did not change has other values"
    if wrong is not None:
        raise ConsistencyError(
            f"on a clone of the server, after the undo of transaction {gtid}, {wrong}",
            hint=f"nothing on the server was changed; {planning.rescue_hint(gtid, _names(changes))}",
        )


@contextlib.contextmanager
def _state(settings: Settings, instance: Instance, at: str, gtid: str) -> Iterator[Session]:
    moment = "right before" if at != gtid else "right after"
    instance.events.tell(f"creating a clone of the data {moment} transaction {gtid}")
    try:
        point = _point(settings, with_volumes(instance), at)
    except ZsnapdbError as error:
        raise PreflightError(
            f"the state {at} cannot be made, so an undo of transaction {gtid} cannot be proved: {error.message}",
            hint=error.hint or "an undo needs a backup or a `zsnapdb snapshot` from before the transaction",
        ) from error
    with (
        ephemeral_clone(settings, instance, CloneRequest(OWNER, at=at, point=point)) as clone,
        clone.session(read_timeout=_LONGEST_SECONDS) as session,
    ):
        yield session


def _point(settings: Settings, instance: Instance, at: str) -> RestorePlan:
    home = home_for(settings, list(instance.volumes.values()))
    here = offline_repository(instance)
    if here is not None:
        try:
            return source_fetch.point_plan(settings, instance, here, home, at)
        except ZsnapdbError:
            # The repository is needed, because the point may be older than all sets on this host.
            here = None
    return source_fetch.point_plan(settings, instance, open_for_restore(instance, RestoreOrigin.AUTO), home, at)
