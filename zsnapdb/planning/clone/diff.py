"""What changed in a table between two states: an ordered merge of its rows by primary key.

Pure, and in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zsnapdb.errors import ConsistencyError, PreflightError
from zsnapdb.planning.quoting import quoted

_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BY_NUMBER = ("enum", "set")


@dataclass(frozen=True)
class Column:
    """A column as information_schema has it.

    `key_part`: its place in the primary key, from 1; 0: not in it. `pads`: its collation ignores trailing spaces.
    """

    name: str
    type: str
    length: int | None = None
    key_part: int = 0
    pads: bool = True

    @property
    def quoted(self) -> str:
        return quoted(self.name)


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


@dataclass(frozen=True)
class Shape:
    """The columns of a comparison: those of the primary key in order, the common ones, those that only one side has."""

    key: tuple[Column, ...]
    common: tuple[Column, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

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
    names = {column.name for column in before}
    common = tuple(column for column in after if column.name in names)
    mutual = {column.name for column in common}
    return Shape(
        keys[0],
        common,
        tuple(c.name for c in before if c.name not in mutual),
        tuple(c.name for c in after if c.name not in mutual),
    )


def order_expression(column: Column) -> str:
    """Return an expression whose values sort in this program as the server sorts the column.

    Text: WEIGHT_STRING, whose bytes compare as the collation does (refman 8.4, "String Functions"); padded, where the
    collation pads. ENUM and SET sort by number.
    """
    if column.type in _TEXT:
        padded = f" AS CHAR({column.length})" if column.pads and column.length else ""
        return f"WEIGHT_STRING({column.quoted}{padded})"
    return f"{column.quoted} + 0" if column.type in _BY_NUMBER else column.quoted


def select(shape_: Shape, schema: str, name: str) -> str:
    """Return the query for the rows, in the order of the primary key's own index.

    Its columns are the key in comparable form, then the common columns.
    """
    columns = [*(order_expression(column) for column in shape_.key), *(column.quoted for column in shape_.common)]
    order = ", ".join(column.quoted for column in shape_.key)
    return " ".join(
        ("SELECT", ", ".join(columns), "FROM", quoted(schema, name), "FORCE INDEX (PRIMARY) ORDER BY", order)
    )


def merge(shape_: Shape, before: Iterable[Sequence[Any]], after: Iterable[Sequence[Any]]) -> Iterator[Change]:
    """Yield what differs, in the order of the key. The rows are those of `select`, both sides in ascending order.

    ConsistencyError if a side is not in ascending order: then no answer would be right.
    """
    width = len(shape_.key)
    left, right = _ascending(before, width), _ascending(after, width)
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield Change(DifferenceKind.REMOVED, shape_.key_of(old[1]), old[1], None)
            old = next(left, None)
        elif old is None or new[0] < old[0]:
            yield Change(DifferenceKind.ADDED, shape_.key_of(new[1]), None, new[1])
            new = next(right, None)
        else:
            if old[1] != new[1]:
                yield Change(DifferenceKind.CHANGED, shape_.key_of(new[1]), old[1], new[1])
            old, new = next(left, None), next(right, None)


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
