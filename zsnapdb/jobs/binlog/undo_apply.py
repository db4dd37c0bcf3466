"""`zsnapdb undo --apply`: undoes a transaction on the server itself, after the same statements passed on a clone."""

from __future__ import annotations

from dataclasses import replace

from zsnapdb.base.errors import ConsistencyError, PreflightError, ServerError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.undo import Undo
from zsnapdb.mysql.schema.exact_rows import exact_rows
from zsnapdb.mysql.schema.table_shapes import TableShapes
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.planning.binlog.undo_proof import StateBefore

_LONGEST_SECONDS = 86400.0
_READ_ONLY = ("read_only", "super_read_only")


def check(instance: Instance) -> None:
    """Raise PreflightError if the server is read-only. Nothing is changed.

    A replica that is changed by itself has another history than its source.
    """
    with instance.session(read_timeout=_LONGEST_SECONDS) as session:
        seen = global_variables(session, _READ_ONLY)
    closed = [name for name in _READ_ONLY if seen.get(name, "OFF") not in ("OFF", "0")]
    if closed:
        raise PreflightError(
            f"the server of {instance.name} has {closed[0]} = {seen[closed[0]]}",
            hint="undo the transaction on its source, where the binlogs have it too",
        )


def apply(instance: Instance, undone: Undo, before: StateBefore) -> Undo:
    """Undo the transaction on the server, in one transaction: all its rows, or none. The account may change them.

    Before its commit the tables must be defined as they were, and every row must be as in the clone right before the
    transaction. PreflightError if nothing was undone; ConsistencyError if a row was not as it was: it was rolled back.
    """
    try:
        with instance.session(read_timeout=_LONGEST_SECONDS) as session:
            _run(instance, session, undone, before)
    except ServerError as error:
        if not _is_undone(instance, before):
            raise PreflightError(
                f"nothing was undone: {error.message}",
                hint="a row was changed since, the account may not change it, or another session kept it locked",
            ) from error
        # The connection was lost after the commit.
    return replace(undone, is_applied=True)


def _run(instance: Instance, session: Session, undone: Undo, before: StateBefore) -> None:
    """Run the statements, prove their result, and commit. If the session ends before, the server rolls back."""
    for statement in (*planning.opening(undone.changes), *map(planning.holding, before.shapes)):
        session.query(statement)
    # Now the open transaction holds the definitions of its tables: no DDL changes one of them before its end.
    with instance.session() as other:
        reader = TableShapes(other)
        now = [reader.read(shape.schema, shape.table) for shape in before.shapes]
        difference = before.definition_difference(now)
    if difference is not None:
        raise PreflightError(f"nothing was undone: {difference}", hint="see what was changed meanwhile")
    for statement in planning.changing(undone.changes):
        session.query(statement)
    wrong = None
    if int(session.value(planning.COUNTED)) == len(undone.changes):
        wrong = before.row_difference(exact_rows(session, before.questions))
    if wrong is not None:
        session.query("ROLLBACK")
        raise ConsistencyError(
            f"the undo of transaction {undone.gtid} was rolled back: {wrong}",
            hint="nothing was changed; rescue the table: `zsnapdb rescue --to before-GTID`",
        )
    for statement in planning.ending(undone.changes):
        session.query(statement)


def _is_undone(instance: Instance, before: StateBefore) -> bool:
    """Whether every row is as before the transaction."""
    with instance.session() as session:
        for statement in planning.SESSION:
            session.query(statement)
        return before.row_difference(exact_rows(session, before.questions)) is None
