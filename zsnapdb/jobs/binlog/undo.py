"""`zsnapdb undo`: shows what a transaction changed, and writes the script that undoes it. The server is not changed.

`jobs/clone/undo_trial.py` proves the script on clones, `undo_apply.py` runs it on the server.

The binlogs of the server are read where they are, those before them in the archive. Its tables say how the values are
to be read, once they are proved to be those of the transaction, and whether its rows are still those that it left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import ExistsError, PreflightError, ServerError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.files import LocalFiles, find_source
from zsnapdb.jobs.binlog.logged import HINT, LoggedTransaction, find_transaction
from zsnapdb.mysql.account_rights import account_privileges
from zsnapdb.mysql.schema.table_shapes import TableShapes
from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.table_shape import METADATA_HINT, TableShape, logged_difference
from zsnapdb.planning.binlog.undo import RowChange


@dataclass(frozen=True)
class Conflict:
    """A row that is not what the transaction left. `is_new`: it was deleted, and there is a row with its key again."""

    change: RowChange
    is_new: bool


@dataclass(frozen=True)
class Undo:
    """A transaction that may be undone: its changes, and the rows that prevent it now.

    The changes are those that the binlog has, in their order. Once they are proved (`is_tried`), they are all that the
    transaction changed, each row once, and a clone of the server was as before the transaction after they were undone
    there. `file` is where the script was written; None: it was not. `is_applied`: then it ran on the server too.
    """

    instance: str
    gtid: str
    transaction: TransactionChanges
    changes: tuple[RowChange, ...]
    conflicts: tuple[Conflict, ...]
    file: Path | None = None
    is_tried: bool = False
    is_applied: bool = False

    @property
    def changed_since(self) -> str:
        """How many of the rows that the transaction left were changed since, for people."""
        rows = len(planning.expectations(self.changes))
        return f"{len(self.conflicts)} of {rows} rows were changed since"


def refuse_existing(into: Path | None) -> None:
    """Raise ExistsError if the file for the script exists."""
    if into is not None and into.exists():
        raise ExistsError(f"{into} exists", hint="name a file that does not exist")


def undo(instance: Instance, gtid: str) -> Undo:
    """Return how the transaction is undone. Nothing on the server is changed.

    NotThere if neither the server's binlogs nor the archive have it. PreflightError says what prevents the undo.
    """
    with instance.session() as session:
        logged = find_transaction(instance, LocalFiles(find_source(session)), gtid)
        _check_rights(session)
        changes = _changes(session, logged, gtid)
        conflicts = _conflicts(session, changes)
    return Undo(instance.name, gtid, logged.transaction, tuple(changes), tuple(conflicts))


def who_sees_triggers(own: Instance, other: Instance, *, is_named: bool) -> Instance:
    """Return the instance with its own account, if that sees whether tables have triggers, else with the other one.

    One that nobody named counts only where the server lets it in.
    """
    with own.session() as session:
        if _sees_triggers(session):
            return own
    if not is_named:
        try:
            other.session().close()
        except ServerError:
            return own
    return other


def refuse_conflicts(undone: Undo) -> None:
    """Raise PreflightError if a row was changed since."""
    if undone.conflicts:
        raise PreflightError(
            f"{undone.changed_since} transaction {undone.gtid}, the first in {undone.conflicts[0].change.shape.name}",
            hint=f"`zsnapdb undo {undone.instance} --gtid {undone.gtid}` names them, and the commands that show them as"
            " they were; nothing was changed",
        )


def write(instance: Instance, undone: Undo, into: Path) -> Undo:
    """Write the script of a proved undo into a new file. ExistsError if the file exists."""
    refuse_existing(into)
    changes = undone.changes
    comment = f"Undoes transaction {undone.gtid} of instance {instance.name}: {len(changes)} changes of rows."
    whole_file.replace(into, planning.script(changes, comment).encode())
    return replace(undone, file=into)


def _check_rights(session: Session) -> None:
    if not _sees_triggers(session):
        raise PreflightError(
            "whether the tables have triggers is not known: the account has not the privilege TRIGGER, or has it by a"
            " role",
            hint="add --user root, or grant SELECT and TRIGGER on *.* to the account of the instance",
        )


def _sees_triggers(session: Session) -> bool:
    return "TRIGGER" in (account_privileges(session) or ())


def _changes(session: Session, logged: LoggedTransaction, gtid: str) -> list[RowChange]:
    reader = TableShapes(session)
    shapes: dict[tuple[str, str], TableShape] = {}
    changes: list[RowChange] = []
    for row in logged.rows:
        shape = shapes.get((row.schema, row.table))
        if shape is None:
            shape = shapes[row.schema, row.table] = reader.read(row.schema, row.table)
            _object(gtid, planning.shape_objection(shape))
        _object(gtid, logged_difference(shape, row.columns, logged.began), METADATA_HINT)
        _object(gtid, planning.row_objection(shape, row))
        try:
            changes.append(planning.row_change(shape, row))
        except ValueError as error:
            _object(gtid, f"a value of {shape.name} cannot be read: {error}")
    _object(gtid, planning.count_objection(changes))
    return changes


def _object(gtid: str, objection: str | None, hint: str = "") -> None:
    if objection is not None:
        raise PreflightError(
            f"transaction {gtid} cannot be undone by rows: {objection}", hint="; ".join(filter(None, (HINT, hint)))
        )


def _conflicts(session: Session, changes: list[RowChange]) -> list[Conflict]:
    for statement in planning.SESSION:
        session.query(statement)
    return [
        Conflict(expected.change, expected.is_absent)
        for expected in planning.expectations(changes)
        if bool(session.query(expected.question)) is expected.is_absent
    ]
