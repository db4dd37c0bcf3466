"""What proves an undo: the rows right before the transaction, asked by their keys, byte by byte. Pure.

The same questions are asked in a clone right before the transaction, and on the server after the undo. They do not
depend on how values were read from the binlog: only the keys of the rows are from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.patterns import printable
from zsnapdb.planning.binlog.row_values import SqlValue, exact_values
from zsnapdb.planning.binlog.table_shape import TableShape, shape_difference
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.planning.quoting import quoted


@dataclass(frozen=True)
class RowQuestion:
    """A question for the row with a key: `sql` returns every value of it, or nothing if there is no such row."""

    table: str
    key: str
    sql: str


@dataclass(frozen=True)
class StateBefore:
    """What was right before the transaction: the definitions of its tables, and a digest of each row that it changed.

    A digest is empty if there was no such row.
    """

    shapes: tuple[TableShape, ...]
    questions: tuple[RowQuestion, ...]
    digests: tuple[bytes, ...] = ()

    def definition_difference(self, now: Sequence[TableShape]) -> str | None:
        """Return how a table is defined otherwise now; None if all are as they were."""
        pairs = zip(self.shapes, now, strict=True)
        return next(filter(None, (shape_difference(then, present) for then, present in pairs)), None)

    def row_difference(self, digests: Sequence[bytes]) -> str | None:
        """Return which row is not as it was; None if all are."""
        for question, then, now in zip(self.questions, self.digests, digests, strict=True):
            if then != now:
                what = "was not there" if not then else "is not there" if not now else "has other values"
                return f"row ({question.key}) of {question.table} {what}, compared with right before the transaction"
        return None


def tables_of(changes: Sequence[RowChange]) -> tuple[TableShape, ...]:
    """Return the tables whose rows were changed, each once."""
    return tuple({change.shape.name: change.shape for change in changes}.values())


def questions(changes: Sequence[RowChange]) -> tuple[RowQuestion, ...]:
    """Return one question for each key that a changed row had before or after its change."""
    found: dict[tuple[str, str, str], RowQuestion] = {}
    for change in changes:
        for row in (change.before, change.after):
            if row is not None:
                question = _question(change.shape, row)
                found[change.shape.schema, change.shape.table, question.sql] = question
    return tuple(found.values())


def _question(shape: TableShape, row: dict[str, SqlValue]) -> RowQuestion:
    key = [(column.name, row[column.name]) for column in shape.columns if column.key_part]
    where = " AND ".join(f"{quoted(name)} = {value.assigned}" for name, value in key)
    values = ", ".join(expression for column in shape.columns for expression in exact_values(column))
    sql = f"SELECT {values} FROM {quoted(shape.schema, shape.table)} WHERE {where}"  # noqa: S608 - quoted, or ours
    return RowQuestion(printable(shape.name), ", ".join(f"{printable(name)}={value.shown}" for name, value in key), sql)
