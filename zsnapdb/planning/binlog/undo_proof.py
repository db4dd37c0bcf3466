"""What proves an undo: the rows right before and right after the transaction, as clones have them. Pure.

A binlog says which rows a transaction changed, by their keys. Their values are those of a clone right before it, and
of one right after it. So values of JSON, those that the binlog leaves out, and rows that a foreign key changed are
known too. Where the binlog has a value, that of the clone must be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.patterns import printable
from zsnapdb.planning.binlog.changes import ChangeKind
from zsnapdb.planning.binlog.row_values import SqlValue, ValueColumn, condition, exact_values, server_value
from zsnapdb.planning.binlog.table_shape import ForeignKey, TableShape, shape_difference
from zsnapdb.planning.binlog.undo import RowChange
from zsnapdb.planning.quoting import quoted

ExactRow = tuple[bytes | None, ...]
"""The values of a row, as a server answers `exact_values` of each column; empty: there is no such row.

Of a table without a primary key it is the number of equal rows.
"""


@dataclass(frozen=True)
class RowQuestion:
    """A question for the row with a key. `key` has the values of `key_columns` in their order.

    Without a primary key, it is for the number of rows with all these values.
    """

    shape: TableShape
    key: tuple[SqlValue, ...]

    @property
    def condition(self) -> str:
        """The condition that a row has the key."""
        if not self.shape.has_key:
            pairs = zip(key_columns(self.shape), self.key, strict=True)
            return " AND ".join(condition(column, value) for column, value in pairs)
        return " AND ".join(
            f"{self.shape.quoted}.{quoted(column.name)} = {value.assigned}"
            for column, value in zip(key_columns(self.shape), self.key, strict=True)
        )

    @property
    def sql(self) -> str:
        """The statement that returns every value of the row, or nothing if there is no such row."""
        values = ", ".join(expression for column in self.shape.columns for expression in exact_values(column))
        values = values if self.shape.has_key else "COUNT(*)"
        return f"SELECT {values} FROM {self.shape.quoted} WHERE {self.condition}"  # noqa: S608 - quoted, or ours

    def __str__(self) -> str:
        named = zip(key_columns(self.shape), self.key, strict=True)
        text = ", ".join(f"{column.name}={value.shown}" for column, value in named)
        return printable(f"row ({text}) of {self.shape.name}")


@dataclass(frozen=True)
class StateBefore:
    """What was right before the transaction: the definitions of its tables, and each row that it changed."""

    shapes: tuple[TableShape, ...]
    questions: tuple[RowQuestion, ...]
    rows: tuple[ExactRow, ...]

    def definition_difference(self, now: Sequence[TableShape]) -> str | None:
        """Return how a table is defined otherwise now; None if all are as they were."""
        pairs = zip(self.shapes, now, strict=True)
        return next(filter(None, (shape_difference(then, present) for then, present in pairs)), None)

    def row_difference(self, rows: Sequence[ExactRow]) -> str | None:
        """Return which row is not as it was; None if all are."""
        for question, then, now in zip(self.questions, self.rows, rows, strict=True):
            if then != now:
                what = "was not there" if not then else "is not there" if not now else "has other values"
                return f"{question} {what}, compared with right before the transaction"
        return None


def key_columns(shape: TableShape) -> list[ValueColumn]:
    """Return the columns of the primary key, in the order of the table; without one, all that are not generated."""
    return [column for column in shape.columns if column.key_part or not (shape.has_key or column.is_generated)]


def tables_of(changes: Sequence[RowChange]) -> tuple[TableShape, ...]:
    """Return the tables whose rows were changed, each once."""
    return tuple({change.shape.name: change.shape for change in changes}.values())


def questions(changes: Sequence[RowChange]) -> tuple[RowQuestion, ...]:
    """Return one question for each key that a changed row had, in the order of the last changes.

    Of a row whose key was changed, the old key comes first: an undo, which goes backwards, must free the new one first.
    """
    found: dict[tuple[str, ...], RowQuestion] = {}
    for change in changes:
        for row in (change.before, change.after):
            if row is not None:
                key = tuple(row[column.name] for column in key_columns(change.shape))
                identity = (change.shape.schema, change.shape.table, *(value.compared for value in key))
                found.pop(identity, None)
                found[identity] = RowQuestion(change.shape, key)
    return tuple(found.values())


def referring(question: RowQuestion, key: ForeignKey, child: TableShape) -> str:
    """Return the statement that returns the keys of the rows that refer to a row by a foreign key."""
    values = ", ".join(f"CAST(c.{quoted(column.name)} AS BINARY)" for column in key_columns(child))
    pairs = zip(key.columns, key.to_columns, strict=True)
    joined = " AND ".join(f"c.{quoted(own)} = {question.shape.quoted}.{quoted(to)}" for own, to in pairs)
    return (
        f"SELECT {values} FROM {question.shape.quoted} JOIN {child.quoted} c ON {joined}"  # noqa: S608 - quoted, or ours
        f" WHERE {question.condition}"
    )


def proven_changes(
    asked: Sequence[RowQuestion], before: Sequence[ExactRow], after: Sequence[ExactRow]
) -> tuple[RowChange, ...]:
    """Return the changes that lead from the rows before to those after the transaction, each row once."""
    found: dict[tuple[object, ...], RowChange] = {}
    for question, then, left in zip(asked, before, after, strict=True):
        if not question.shape.has_key:
            found.update(((question, number), one) for number, one in enumerate(_copies(question, then, left)))
        elif then != left:
            kind = ChangeKind.INSERT if not then else ChangeKind.UPDATE if left else ChangeKind.DELETE
            shape = question.shape
            # Keys that a collation takes for the same one ask for one row.
            found.setdefault((shape.name, then, left), RowChange(shape, kind, _row(shape, then), _row(shape, left)))
    return tuple(found.values())


def _copies(question: RowQuestion, then: ExactRow, left: ExactRow) -> list[RowChange]:
    """Return the changes of the number of equal rows."""
    names = (column.name for column in key_columns(question.shape))
    row, more = dict(zip(names, question.key, strict=True)), _number(left) - _number(then)
    if more < 0:
        return [RowChange(question.shape, ChangeKind.DELETE, row, None)] * -more
    return [RowChange(question.shape, ChangeKind.INSERT, None, row)] * more


def _number(exact: ExactRow) -> int:
    return int(exact[0] or b"0")


def count_difference(
    logged: Sequence[RowChange], asked: Sequence[RowQuestion], before: Sequence[ExactRow], after: Sequence[ExactRow]
) -> str | None:
    """Return which equal rows of a table without a primary key the binlog counts otherwise; None if there are none."""
    counts: Counter[RowQuestion] = Counter()
    for change in logged:
        if not change.shape.has_key:
            for row, sign in ((change.before, -1), (change.after, 1)):
                if row is not None:
                    key = tuple(row[column.name] for column in key_columns(change.shape))
                    counts[RowQuestion(change.shape, key)] += sign
    for question, then, left in zip(asked, before, after, strict=True):
        if not question.shape.has_key and counts[question] != _number(left) - _number(then):
            return f"the number of rows like {question} changed by {_number(left) - _number(then)} in the clones"
    return None


def _row(shape: TableShape, exact: ExactRow) -> dict[str, SqlValue] | None:
    if not exact:
        return None
    values, at = {}, 0
    for column in shape.columns:
        if not column.is_generated:
            values[column.name] = server_value(column, exact[at])
        at += len(exact_values(column))
    return values


def needs_same_definition(
    logged: Sequence[RowChange], asked: Sequence[RowQuestion], then: Mapping[str, TableShape]
) -> str | None:
    """Return why a value that only the clone before the transaction has may be of another column; None if it is not.

    Such a value was brought there by a replay, which knows no DDL that went to no binlog. So the definition there must
    be the very one of now, made at the same time.
    """
    whole = {change.shape.name: True for change in logged}
    for change in logged:
        images = [image for image in (change.before, change.after) if image is not None]
        names = {column.name for column in change.shape.columns if not column.is_generated}
        whole[change.shape.name] &= all(names <= image.keys() for image in images)
    for question in asked:
        shape = question.shape
        made = then[shape.name].made
        if not whole.get(shape.name, False) and (made is None or made != shape.made):
            return (
                f"the binlog has not all values of {shape.name} (JSON, binlog_row_image, CASCADE), and since the"
                " snapshot before the transaction its definition was changed outside of the binlog or made anew"
            )
    return None
