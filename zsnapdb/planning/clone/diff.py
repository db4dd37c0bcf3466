"""Finds a table's changes between two states by merging its rows in key order. Pure, and in constant memory."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import copysign
from typing import Any

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.planning.sql_quoting import quoted

_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BY_NUMBER = ("enum", "set")
_REAL = ("float", "double")
_TEMPORAL = ("date", "time", "datetime", "timestamp")
_BY_BYTES = ("uuid", "inet6", "inet4")
_LOSSLESS = ("utf8mb4", "utf8mb3", "utf8", "utf16", "utf16le", "utf32", "ucs2", "latin1")
"""Character sets in which different texts stay different after conversion to utf8mb4 (tested with every character).

Other character sets contain two characters for one Unicode character (cp932, big5), or bytes without a character
(ascii, latin7), which become `?`.
"""
_MOST_SINGLE_DIGITS = 9
"""The number of digits that identifies any single-precision number (IEEE 754, 5.12.2)."""


@dataclass(frozen=True)
class Column:
    """A column as described in information_schema.

    The field `key_part` is the column's position in the primary key, counted from 1, or 0 if it is not in the key. The
    field `pads` is set if the column's collation ignores trailing spaces.
    """

    name: str
    type: str
    length: int | None = None
    key_part: int = 0
    pads: bool = True
    charset: str | None = field(default=None, compare=False)

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    @property
    def is_real(self) -> bool:
        """Whether the column's values are floating-point numbers."""
        return self.type in _REAL


def order_expression(column: Column) -> str:
    """Return an expression whose values sort in Python in the same order as the server sorts the column.

    For text, the expression is WEIGHT_STRING, whose bytes sort in the collation's order (refman 8.4, "String
    Functions"). The string is padded if the collation ignores trailing spaces. ENUM and SET sort by number. A time
    becomes a number with the same digits. So zero dates and negative times sort correctly too. UUIDs and network
    addresses sort by their bytes; see `sort_expression`.
    """
    if column.type in _TEXT:
        padded = f" AS CHAR({column.length})" if column.pads and column.length else ""
        return f"WEIGHT_STRING({column.quoted}{padded})"
    if column.type in _BY_BYTES:
        return f"CAST({column.quoted} AS BINARY)"
    if column.type in _BY_NUMBER:
        return f"CAST({column.quoted} AS UNSIGNED)"
    return f"{column.quoted} + 0" if column.type in _TEMPORAL else value_expression(column)


def sort_expression(column: Column) -> str:
    """Return the SQL expression by which the server must sort the rows.

    The expression is the column itself, so that the server can use an index. A UUID is an exception: MariaDB does not
    sort it by its bytes (MariaDB manual, "UUID Data Type").
    """
    return order_expression(column) if column.type == "uuid" else column.quoted


def value_expression(column: Column) -> str:
    """Return an expression whose printed value is exactly the column's value.

    A server prints a FLOAT with 6 digits and a DOUBLE(M, D) with D decimals. If such a column is multiplied by `1e0`,
    the server prints it as a DOUBLE with all digits (observed with MySQL 9.7 and MariaDB 11.8). The expression for a
    vector returns its bytes.
    """
    if column.type == "vector":
        return f"UNHEX(HEX({column.quoted}))"
    return f"{column.quoted} * 1e0" if column.is_real else column.quoted


def remainder_expression(before: Column, after: Column) -> str | None:
    """Return an expression that distinguishes values that are printed alike; None if the type has no such values.

    For text, the expression returns the bytes. A server prints an invalid ENUM value and an empty SET in the same way
    as a member with an empty name.
    """
    if after.type in _TEXT and before.charset == after.charset is not None and after.charset not in _LOSSLESS:
        return f"CAST({after.quoted} AS BINARY)"
    if after.type in _BY_NUMBER and before.type == after.type:
        return f"IF({after.quoted} + 0 = 0, 'no member', 'a member')"
    return None


def is_same(before: Any, after: Any) -> bool:
    """Return whether two values are the same.

    Zeros with different signs differ, although SQL and Python consider them equal.
    """
    if isinstance(before, float) and isinstance(after, float):
        return before == after and copysign(1.0, before) == copysign(1.0, after)
    return bool(before == after)


def readable_value(column: Column, value: Any) -> Any:
    """Return the value for display. A FLOAT is shown with the fewest digits that identify the value."""
    return shortest_single(value) if column.type == "float" and isinstance(value, float) else value


def shortest_single(value: float) -> float:
    """Return the shortest number (6 or more digits) that rounds to this value in single precision.

    If the value is not a single-precision number, the function returns it unchanged.
    """
    for digits in range(6, _MOST_SINGLE_DIGITS + 1):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return value


class DifferenceKind(StrEnum):
    """The kind of a row change."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Change:
    """A row that differs between two states: its key and its values in both states, in the order of common columns.

    `before` or `after` is None if the row does not exist in that state.
    """

    kind: DifferenceKind
    key: tuple[Any, ...]
    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None


class RowCount:
    """A counter of the rows that pass through it."""

    def __init__(self) -> None:
        self.number = 0

    def through(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.number += 1
            yield row


def count_changes(changes: Iterable[Change], counts: MutableMapping[DifferenceKind, int]) -> Iterator[Change]:
    """Yield the changes and count them by kind."""
    for change in changes:
        counts[change.kind] += 1
        yield change


@dataclass(frozen=True)
class Shape:
    """The columns of a comparison: the primary key in order, the common columns, and the columns of only one side.

    The field `common` contains the common columns as the later state defines them. The field `earlier` contains the
    same columns as the earlier state defines them.
    """

    key: tuple[Column, ...]
    earlier: tuple[Column, ...]
    common: tuple[Column, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def remainders(self) -> tuple[str | None, ...]:
        """The `remainder_expression` of each common column; None for a column whose printed value is unambiguous."""
        return tuple(remainder_expression(*pair) for pair in zip(self.earlier, self.common, strict=True))

    def key_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of the key, taken from the values of the common columns."""
        names = [column.name for column in self.common]
        return tuple(values[names.index(column.name)] for column in self.key)


def shape(before: Sequence[Column], after: Sequence[Column], table: str) -> Shape:
    """Return the shape of the comparison.

    Raises PreflightError unless both states of the table have the same primary key.
    """
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

    The argument `columns` contains the common columns with their definitions in this state. The query returns the key
    in comparable form, the values of the common columns, and the remainders (`remainder_expression`).
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
    """Yield the differing rows in the order of the key. Both sides contain the rows of `select` in ascending order.

    Raises ConsistencyError if a side is not in ascending order, because then the result would be wrong.
    """
    width = len(shape_.key)
    left, right = _ascending(before, width), _ascending(after, width)
    reals = [number for number, column in enumerate(shape_.common) if column.is_real]
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            values = _readable_row(shape_.earlier, old[1])
            yield Change(DifferenceKind.REMOVED, shape_.key_of(values), values, None)
            old = next(left, None)
        elif old is None or new[0] < old[0]:
            values = _readable_row(shape_.common, new[1])
            yield Change(DifferenceKind.ADDED, shape_.key_of(values), None, values)
            new = next(right, None)
        else:
            if old[1] != new[1] or not all(is_same(old[1][number], new[1][number]) for number in reals):
                yield _changed(shape_, old[1], new[1])
            old, new = next(left, None), next(right, None)


def _readable_row(columns: Sequence[Column], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of the row for display, without the remainders."""
    return tuple(readable_value(column, value) for column, value in zip(columns, row, strict=False))


def _changed(shape_: Shape, old: Sequence[Any], new: Sequence[Any]) -> Change:
    """Return the change of a row.

    If the old and the new value of a column look the same when displayed, the change contains the unrounded values. If
    these also look the same, it contains the remainders.
    """
    before, after = list(_readable_row(shape_.earlier, old)), list(_readable_row(shape_.common, new))
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


_COUNTER = re.compile(r" AUTO_INCREMENT=[0-9]+")


def definition(text: str) -> str:
    """Return the server's text of a table definition without the AUTO_INCREMENT counter."""
    return _COUNTER.sub("", text)


def schema_difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return a unified diff of all definitions in two states; "" if they do not differ."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = (given.get(name, "").splitlines() for given in (before, after))
        lines += difflib.unified_diff(old, new, f"{name} before", f"{name} after", n=1, lineterm="")
    return "\n".join(lines)


@dataclass
class ShownDifference:
    """The remaining space for a displayed difference: rows per table and characters in total.

    The field `is_cut` is set if a part of the difference is not shown.
    """

    rows: int
    characters: int
    is_cut: bool = False

    def fitting_lines(self, text: str) -> str:
        """Return the first lines of the text that fit, and subtract their length from the remaining space."""
        if len(text) > self.characters:
            # Do not cut a line, because a cut line would look like another definition.
            text, self.is_cut = text[: text.rfind("\n", 0, self.characters + 1) + 1].rstrip("\n"), True
        self.characters -= len(text)
        return text

    def fitting_rows(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Return the first changes of a table that fit, and subtract their length from the remaining space.

        The function may also consume the next change of `changes`.
        """
        found = list[Change]()
        for change in islice(changes, self.rows):
            needed = sum(_length(value) for row in (change.key, change.before, change.after) for value in row or ())
            if needed > self.characters:
                break
            self.characters -= needed
            found.append(change)
        return tuple(found)


def _length(value: Any) -> int:
    """Return the minimum number of characters of a displayed value. Bytes are displayed as hexadecimal digits."""
    return 2 * len(value) if isinstance(value, bytes | bytearray) else len(str(value))
