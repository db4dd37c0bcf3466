"""What changed in a table between two states: an ordered merge of its rows by primary key.

Pure, and in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.planning.clone.exact_values import (
    Column,
    is_same,
    order_expression,
    remainder_expression,
    shown,
    sort_expression,
    value_expression,
)
from zsnapdb.planning.sql_text import quoted


class DifferenceKind(StrEnum):
    """What happened to a row."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """A row that differs: its key, and its values before and after, in the order of the common columns.

    None: the row did not exist on that side.
    """

    kind: DifferenceKind
    key: tuple[Any, ...]
    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None


class RowCount:
    """Counts the rows that pass through it."""

    def __init__(self) -> None:
        self.number = 0

    def through(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, counted."""
        for row in rows:
            self.number += 1
            yield row


def counted(changes: Iterable[Change], counts: MutableMapping[DifferenceKind, int]) -> Iterator[Change]:
    """Yield the changes, counted by their kinds."""
    for change in changes:
        counts[change.kind] += 1
        yield change


@dataclass(frozen=True)
class Shape:
    """The columns of a comparison: those of the primary key in order, the common ones, those that only one side has.

    `common` are the common columns as the later state has them, `earlier` the same as the earlier state has them.
    """

    key: tuple[Column, ...]
    earlier: tuple[Column, ...]
    common: tuple[Column, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def remainders(self) -> tuple[str | None, ...]:
        """For each common column the expression for what its printed value does not tell; None: it tells all."""
        return tuple(remainder_expression(*pair) for pair in zip(self.earlier, self.common, strict=True))

    def key_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of the key, taken from the values of the common columns."""
        names = [column.name for column in self.common]
        return tuple(values[names.index(column.name)] for column in self.key)


def shape(before: Sequence[Column], after: Sequence[Column], table: str) -> Shape:
    """Return what can be compared. PreflightError unless both states of the table have the same primary key."""
    keys = [
        tuple(sorted((c for c in columns if c.key_part), key=lambda column: column.key_part))
        for columns in (before, after)
    ]
    if not keys[0] or not keys[1]:
        raise PreflightError(
            f"{table} has no primary key",
            hint="the comparison needs one to match rows; compare the table with queries of your own",
        )
    if keys[0] != keys[1]:
        raise PreflightError(
            f"the primary key of {table} differs between the two states",
            hint="compare the table with queries of your own",
        )
    names = {column.name: column for column in before}
    common = tuple(column for column in after if column.name in names)
    mutual = {column.name for column in common}
    return Shape(
        keys[0],
        tuple(names[column.name] for column in common),
        common,
        tuple(c.name for c in before if c.name not in mutual),
        tuple(c.name for c in after if c.name not in mutual),
    )


def select(shape_: Shape, columns: Sequence[Column], schema: str, name: str) -> str:
    """Return the query for the rows of one state, in the order of the primary key.

    `columns` are the common columns as this state has them. The columns of the query are the key in comparable form,
    the values of the common columns, then the remainders: what a printed value does not tell.
    """
    selected = (
        *(order_expression(column) for column in shape_.key),
        *(value_expression(column) for column in columns),
        *(expression for expression in shape_.remainders if expression is not None),
    )
    order = ", ".join(sort_expression(column) for column in shape_.key)
    return " ".join(
        ("SELECT", ", ".join(selected), "FROM", quoted(schema, name), "FORCE INDEX (PRIMARY) ORDER BY", order)
    )


def merge(shape_: Shape, before: Iterable[Sequence[Any]], after: Iterable[Sequence[Any]]) -> Iterator[Change]:
    """Yield what differs, in the order of the key. The rows are those of `select`, both sides in ascending order.

    ConsistencyError if a side is not in ascending order: then no answer would be right.
    """
    width = len(shape_.key)
    left, right = _ascending(before, width), _ascending(after, width)
    reals = [number for number, column in enumerate(shape_.common) if column.is_real]
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            values = _shown(shape_.earlier, old[1])
            yield Change(DifferenceKind.REMOVED, shape_.key_of(values), values, None)
            old = next(left, None)
        elif old is None or new[0] < old[0]:
            values = _shown(shape_.common, new[1])
            yield Change(DifferenceKind.ADDED, shape_.key_of(values), None, values)
            new = next(right, None)
        else:
            if old[1] != new[1] or not all(is_same(old[1][number], new[1][number]) for number in reals):
                yield _changed(shape_, old[1], new[1])
            old, new = next(left, None), next(right, None)


def _shown(columns: Sequence[Column], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of the row as a reader sees them, without the remainders."""
    return tuple(shown(column, value) for column, value in zip(columns, row, strict=False))


def _changed(shape_: Shape, old: Sequence[Any], new: Sequence[Any]) -> Change:
    """Return the change of a row. Where both values look alike, it has what tells them apart in their place."""
    before, after = list(_shown(shape_.earlier, old)), list(_shown(shape_.common, new))
    key = shape_.key_of(after)
    place = len(shape_.common)
    for number, remainder in enumerate(shape_.remainders):
        has_same_look = is_same(before[number], after[number])
        if has_same_look and not is_same(old[number], new[number]):
            before[number], after[number] = old[number], new[number]
        if remainder is not None:
            if has_same_look and old[place] != new[place]:
                before[number], after[number] = old[place], new[place]
            place += 1
    return Change(DifferenceKind.CHANGED, key, tuple(before), tuple(after))


def _ascending(rows: Iterable[Sequence[Any]], width: int) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    last: tuple[Any, ...] | None = None
    for row in rows:
        key = tuple(row[:width])
        if last is not None and not last < key:
            raise ConsistencyError(
                f"the server sorts the primary key in an unexpected order: {last!r} before {key!r}",
                hint="report this with the key's type",
            )
        last = key
        yield key, tuple(row[width:])
