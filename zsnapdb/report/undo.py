"""A transaction that can be undone by rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zsnapdb.base.patterns import printable
from zsnapdb.documents.binlog import UndoDocument
from zsnapdb.jobs.binlog.undo import Conflict, Undo
from zsnapdb.planning.binlog.remedy import of_changed_rows
from zsnapdb.planning.binlog.row_values import SqlValue
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.report.units import moment
from zsnapdb.report.view import View

_MOST_LISTED = 20


@dataclass(frozen=True)
class UndoView(View):
    """The rows that a transaction changed, and what prevents that they are undone, as `zsnapdb undo` prints them."""

    undo: Undo
    kind: ClassVar[str] = "undo"
    document_class = UndoDocument
    read_from = "undo"

    def text(self) -> str:
        undo = self.undo
        changes = undo.changes
        lines = [f"transaction {undo.gtid} of {moment(undo.transaction.committed)} changed {len(changes)} rows"]
        lines += [f"  {_line(change)}" for change in changes[:_MOST_LISTED]]
        lines += _more(len(changes))
        if undo.is_applied:
            lines.append("undone    on the server, in one transaction: every row is as before")
        elif undo.conflicts:
            lines.append(f"{undo.changed_since}; while they are, nothing is undone:")
            lines += [f"  {_conflict(conflict)}" for conflict in undo.conflicts[:_MOST_LISTED]]
            lines += _more(len(undo.conflicts))
        else:
            lines.append("no row was changed since: all of them can be undone now")
        if undo.is_tried:
            lines.append("tried     on a clone of the server: every row was as before the transaction")
        if undo.file is not None:
            lines.append(f"written   {undo.file}")
        if undo.file is not None and not undo.is_applied:
            lines.append("next      run it with the client of the server")
        elif undo.conflicts:
            lines.append("next      the rows as they were before the transaction:")
            changed = [conflict.change for conflict in undo.conflicts]
            lines += [f"  {command}" for command in of_changed_rows(undo.instance, undo.gtid, changed)]
        elif not undo.is_applied:
            lines.append(
                "next      `--into FILE` proves and writes the SQL, `--apply` proves and runs it; nothing was changed"
            )
        return "\n".join(lines)


def _more(count: int) -> list[str]:
    return [f"  … and {count - _MOST_LISTED} more; --json lists all"] if count > _MOST_LISTED else []


def _line(change: RowChange) -> str:
    name = printable(change.shape.name)
    if change.before is None:
        return f"insert {name} {_row_text(change.after or {})}"
    if change.after is None:
        return f"delete {name} {_row_text(change.before)}"
    differing = {column: value for column, value in change.after.items() if change.before.get(column) != value}
    before = {column: change.before[column] for column in differing if column in change.before}
    return f"update {name} {_row_text(change.key)}: {_row_text(before)} became {_row_text(differing)}"


def _conflict(conflict: Conflict) -> str:
    what = "exists again" if conflict.is_new else "differs from what the transaction left, or is gone"
    return f"{printable(conflict.change.shape.name)} {_row_text(conflict.change.key)} {what}"


def _row_text(values: dict[str, SqlValue]) -> str:
    return "(" + ", ".join(f"{printable(name)}={value.shown}" for name, value in values.items()) + ")"
