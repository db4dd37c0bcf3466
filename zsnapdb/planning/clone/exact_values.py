"""Forms of a column's values that lose nothing, for rows that are compared, ordered and printed. Pure.

What a server prints is not always what it stores: a FLOAT has 6 digits, text of some character sets becomes `?`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import copysign
from typing import Any

from zsnapdb.planning.sql_text import quoted

_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BY_NUMBER = ("enum", "set")
_REAL = ("float", "double")
_TEMPORAL = ("date", "time", "datetime", "timestamp")
_BY_BYTES = ("uuid", "inet6", "inet4")
_LOSSLESS = ("utf8mb4", "utf8mb3", "utf8", "utf16", "utf16le", "utf32", "ucs2", "latin1")
"""Character sets of which every text becomes another text in utf8mb4 (tried with every character).

Others have two characters for one of Unicode (cp932, big5), or bytes without any (ascii, latin7), which become `?`.
"""
_MOST_SINGLE_DIGITS = 9
"""So many digits name any number of single precision (IEEE 754, 5.12.2)."""


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
    charset: str | None = field(default=None, compare=False)

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    @property
    def is_real(self) -> bool:
        """Whether its values are floating point numbers."""
        return self.type in _REAL


def order_expression(column: Column) -> str:
    """Return an expression whose values sort in this program as the server sorts the column.

    Text: WEIGHT_STRING, whose bytes compare as the collation does (refman 8.4, "String Functions"); padded, where the
    collation pads. ENUM and SET sort by number. A time is its digits as a number, so that zero dates and negative times
    sort too. UUIDs and network addresses sort by their bytes; see `sort_expression`.
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
    """Return the expression by which the server is to sort.

    It is the column itself, so that the server walks its index; except for a UUID, which MariaDB sorts in another order
    than that of its bytes (MariaDB manual, "UUID Data Type").
    """
    return order_expression(column) if column.type == "uuid" else column.quoted


def value_expression(column: Column) -> str:
    """Return an expression whose value, as the server prints it, names the column's number exactly.

    A server prints a FLOAT with 6 digits, a DOUBLE(M, D) with D of them, and a product of both as a DOUBLE with all
    digits (MySQL 9.7 and MariaDB 11.8, observed). A vector is printed as its bytes.
    """
    if column.type == "vector":
        return f"UNHEX(HEX({column.quoted}))"
    return f"{column.quoted} * 1e0" if column.is_real else column.quoted


def remainder_expression(before: Column, after: Column) -> str | None:
    """Return an expression that tells values apart which are printed alike; None if there are none of the type.

    Text has its bytes. The value of an ENUM that is no member, and an empty SET, are printed like a member ''.
    """
    if after.type in _TEXT and before.charset == after.charset is not None and after.charset not in _LOSSLESS:
        return f"CAST({after.quoted} AS BINARY)"
    if after.type in _BY_NUMBER and before.type == after.type:
        return f"IF({after.quoted} + 0 = 0, 'no member', 'a member')"
    return None


def is_same(before: Any, after: Any) -> bool:
    """Whether two values are the same, the sign of a zero included, which SQL and Python take for equal."""
    if isinstance(before, float) and isinstance(after, float):
        return before == after and copysign(1.0, before) == copysign(1.0, after)
    return bool(before == after)


def shown(column: Column, value: Any) -> Any:
    """Return the value for a reader: a FLOAT has as few digits as name it."""
    return shortest_single(value) if column.type == "float" and isinstance(value, float) else value


def shortest_single(value: float) -> float:
    """Return the number with the fewest digits, 6 or more, that single precision rounds to this value.

    A value that is not one of single precision is returned as it is.
    """
    for digits in range(6, _MOST_SINGLE_DIGITS + 1):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return value
