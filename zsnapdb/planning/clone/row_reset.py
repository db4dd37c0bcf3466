"""Decides whether the changes in a clone can be undone row by row, without replacing the clone's data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.row_values import TableShape, is_readable
from zsnapdb.planning.binlog.undo import LoggedRow, RowChange, shape_objection

MOST_CHANGES = 2000
"""The maximum number of row changes that are undone.

With several thousand changes, it is faster to replace the data.
"""
MOST_TABLES = 500
"""The maximum number of tables whose AUTO_INCREMENT counters are read.

To return a counter, a server must open the table.
"""


def transaction_objection(transaction: TransactionChanges) -> str | None:
    """Return why the transaction cannot be undone row by row; None if it can."""
    if transaction.statements or transaction.other_statements:
        first = transaction.statements[0].kind.value if transaction.statements else "other"
        return f"a statement that is no change of rows was run ({first})"
    if transaction.is_prepared or transaction.has_incident or not transaction.are_rows_known:
        return "the binlog has not all changes: " + "; ".join(transaction.unknown)
    # A transaction with statements is refused, because a parser may mistake a statement for the end of a transaction.
    return None if transaction.rows else "a statement that is no change of rows was run"


def table_objection(shape: TableShape) -> str | None:
    """Return why changes of the table cannot be undone; None if they can."""
    objection = shape_objection(shape)
    if objection is not None:
        return objection
    if not shape.has_key:
        return f"{shape.name} has no primary key"
    if shape.cascades:
        return f"{shape.cascades[0]} changes rows of other tables, which no binlog has"
    return None


def unreadable_objection(shape: TableShape, row: LoggedRow) -> str | None:
    """Return why unreadable values in the binlog, such as MySQL JSON, prevent an undo of the change; else None.

    An insert can be undone in spite of such values, because the undo removes the whole row. An update can be undone if
    it changed no byte of these values.
    """
    if row.before is None:
        return None
    for place, column in enumerate(shape.columns):
        if column.is_generated or is_readable(column):
            continue
        if row.after is None or place not in row.before or row.before[place] != row.after.get(place):
            return f"a value of {shape.name}.{column.name} was changed, and of type {column.type} the binlog tells none"
    return None


def changes_objection(changes: Sequence[RowChange]) -> str | None:
    """Return why these changes cannot be undone; None if they can."""
    if len(changes) > MOST_CHANGES:
        return f"{len(changes)} rows were changed, more than {MOST_CHANGES}"
    for change in changes:
        names = {one.name for one in change.shape.columns if not one.is_generated and is_readable(one)}
        images = [image for image in (change.before, change.after) if image is not None]
        if any(not names <= image.keys() for image in images):
            return f"the binlog has not all values of rows of {change.shape.name}"
    return None


def log_objection(status: Mapping[str, str]) -> str | None:
    """Return why the server's binlog may lack changes, as its status variables show; None if there is no reason."""
    if not status.get("File"):
        return "the server writes no binlog"
    filters = status.get("Binlog_Do_DB", "") + status.get("Binlog_Ignore_DB", "")
    return f"the binlog leaves out schemas ({filters})" if filters else None


@dataclass(frozen=True)
class SwapCase:
    """A candidate for a swap with another clone: its reserved port, and whether HAProxy listens on that port.

    `has_commits` is set if the clone has branches or snapshots, because a swap would remove these together with the
    clone's data. `waiting_bytes` is the space of the data that earlier swaps replaced, and `own_bytes` the space of the
    clone's data. `quota` is the quota of the clone in bytes; 0 for no limit.
    """

    has_pool: bool
    address: int | None
    is_listened_at: bool
    is_of_set: bool
    has_commits: bool
    waiting_bytes: int = 0
    own_bytes: int = 0
    quota: int = 0


def clone_objection(case: SwapCase) -> str | None:
    """Return why the clone cannot be swapped for another clone; None if it can."""
    if not case.has_pool:
        return "its instance has no pool"
    if case.address is None:
        return "it keeps no port"
    if not case.is_listened_at:
        return f"HAProxy does not listen at its port {case.address}"
    if case.is_of_set:
        return "it is one of a set"
    if case.has_commits:
        return "it has commits, branches or other snapshots"
    # Replaced data has no owner, so no other limit counts it.
    if case.quota and case.waiting_bytes and case.waiting_bytes + case.own_bytes > case.quota:
        return "the next `clone pool` or `reap` must first remove the data of earlier swaps"
    return None
