"""Converts values of rows in a binlog to SQL, with the definitions of their tables. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from zsnapdb.base.patterns import printable
from zsnapdb.planning.sql_quoting import quoted

_INTEGERS = {"tinyint": (1, 1), "smallint": (2, 2), "mediumint": (9, 3), "int": (3, 4), "bigint": (8, 8)}
_FRACTIONAL = {"time": (19, 3), "datetime": (18, 5), "timestamp": (17, 4)}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_NUMBERED = ("enum", "set", "bit")
_NUMBERS = {"enum": 247, "set": 248}
_GEOMETRIES = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "geomcollection"),
)
_LENGTHS = {
    f"{size}{kind}": prefix
    for prefix, size in enumerate(("tiny", "", "medium", "long"), 1)
    for kind in ("text", "blob")
}
"""The size in bytes of the length prefix of each TEXT and BLOB type."""
_CODECS = {"ascii": "ascii", "latin1": "cp1252", **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8")}
_BINARY = 63
"""The id of the collation `binary`."""
_BIT, _JSON, _DECIMAL, _BLOB, _CHAR, _GEOMETRY, _VARCHARS = 16, 245, 246, 252, 254, 255, (15, 253)
_READABLE_CHARSETS = ("ascii", "latin1", "utf8", "utf8mb3", "utf8mb4")
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_MOST_SHOWN = 60


@dataclass(frozen=True)
class ValueColumn:
    """A column as described in information_schema.

    The field `key_part` is the column's position in the primary key, counted from 1, or 0 if it is not in the key.

    The field `collation_id` is the server's id of the collation. The field `expression` is the expression of a
    generated column.
    """

    name: str
    type: str
    full_type: str
    key_part: int = 0
    charset: str | None = None
    octets: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int = 0
    is_generated: bool = False
    collation: str | None = None
    collation_id: int | None = None
    is_nullable: bool = True
    expression: str = ""

    @property
    def quoted(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True, slots=True)
class SqlValue:
    """A value in three forms: SQL for an assignment, SQL for a byte-by-byte comparison, and text for display."""

    assigned: str
    compared: str
    shown: str


NULL = SqlValue("NULL", "NULL", "NULL")


@dataclass(frozen=True)
class LoggedColumn:
    """A column in a table map event: its type, and the prefix, fixed length and size of its values (see `RowColumn`).

    All further facts are None unless the server logs them. MySQL always logs signs and collations. The setting
    binlog_row_metadata decides whether a server logs the remaining facts.
    """

    code: int
    prefix: int
    fixed: int
    size: int = 0
    numbered: int = 0
    name: str | None = None
    is_unsigned: bool | None = None
    collation: int | None = None
    members: tuple[bytes, ...] | None = None


def form_difference(column: ValueColumn, logged: LoggedColumn) -> str | None:
    """Return how a column differs from its description in a table map event; None if no difference is known."""
    if logged.name is not None and logged.name != column.name:
        return f"was named {printable(logged.name)}"
    if column.is_generated:
        return None
    if not _is_form_of(column, logged):
        return "had another type or size"
    is_unsigned = column.type == "year" or "unsigned" in column.full_type
    if logged.is_unsigned is not None and logged.is_unsigned != is_unsigned:
        return "was UNSIGNED" if logged.is_unsigned else "was not UNSIGNED"
    if logged.collation is not None and logged.collation != (column.collation_id or _BINARY):
        return f"had another character set or collation than {column.collation or 'binary'}"
    if logged.members is not None and list(logged.members) != _members(column):
        return f"had other values than {printable(column.full_type)}, or in another order"
    return None


def _is_form_of(column: ValueColumn, logged: LoggedColumn) -> bool:
    kind, code, fixed = column.type, logged.code, logged.fixed
    if kind in _INTEGERS:
        return (code, fixed) == _INTEGERS[kind]
    if kind in _FRACTIONAL:
        expected, size = _FRACTIONAL[kind]
        return (code, fixed, logged.size) == (expected, size + (column.fraction + 1) // 2, column.fraction)
    if kind == "decimal":
        return (code, logged.size) == (_DECIMAL, (column.precision or 0) << 8 | (column.scale or 0))
    if kind in ("char", "binary"):
        return (code, logged.numbered, logged.size) == (_CHAR, 0, column.octets)
    if kind in ("varchar", "varbinary"):
        return code in _VARCHARS and logged.size == column.octets
    if kind in ("enum", "set"):
        return (code, logged.numbered) == (_CHAR, _NUMBERS[kind])
    if kind in _LENGTHS:
        return (code, logged.prefix) == (_BLOB, _LENGTHS[kind])
    if kind == "json" or kind in _GEOMETRIES:
        return (code, logged.prefix) == (_JSON if kind == "json" else _GEOMETRY, 4)
    if kind == "bit":
        return (code, logged.size) == (_BIT, column.precision)
    return (code, fixed) == {"float": (4, 4), "double": (5, 8), "date": (10, 3), "year": (13, 1)}.get(kind)


def _members(column: ValueColumn) -> list[bytes] | None:
    """Return the values of an ENUM or SET as bytes of its character set; None if the character set is unknown."""
    codec = _CODECS.get(column.charset or "")
    found = re.fullmatch(r"(?:enum|set)\((.*)\)", column.full_type, re.DOTALL)
    if codec is None or found is None:
        return None
    texts = re.findall(r"'((?:[^']|'')*)'", found[1])
    try:
        return [text.replace("''", "'").encode(codec) for text in texts]
    except UnicodeEncodeError:
        return None


def is_readable(column: ValueColumn) -> bool:
    """Return whether values of this type can be read from a binlog.

    Values of MySQL's JSON type and of plugin types cannot be read.
    """
    others = ("float", "double", "decimal", "date", "year", *_NUMBERED, *_GEOMETRIES)
    return column.type in (*_INTEGERS, *_FRACTIONAL, *_TEXTS, *_BYTES, *others)


def is_readable_on_server(column: ValueColumn) -> bool:
    """Return whether a server returns exact values of this type.

    For a JSON number, the exact value is the text that the server prints.
    """
    return column.type == "json" or is_readable(column)


def condition(column: ValueColumn, value: SqlValue) -> str:
    """Return the SQL condition that the column has exactly this value, regardless of its collation."""
    if value is NULL:
        return f"{column.quoted} IS NULL"
    if column.type in _TEXTS or column.type in _BYTES:
        return f"CAST({column.quoted} AS BINARY) = {value.compared}"
    if column.type == "json":
        return f"CAST(CAST({column.quoted} AS CHAR) AS BINARY) = {value.compared}"
    if column.type in _GEOMETRIES:
        return f"HEX({column.quoted}) = {value.compared}"
    if column.type in _NUMBERED:
        return f"{column.quoted} + 0 = {value.compared}"
    if column.type in ("float", "double") and float(value.shown) == 0:
        # A comparison treats -0 and 0 as equal.
        return f"CAST({column.quoted} + 0e0 AS CHAR) = '{'-0' if value.shown.startswith('-') else '0'}'"
    return f"{column.quoted} = {value.compared}"


def exact_values(column: ValueColumn) -> tuple[str, ...]:
    """Return SQL expressions whose results, compared as bytes, distinguish any two values of the column.

    A FLOAT is printed with six digits, so it is queried as a DOUBLE. An ENUM or SET value consists of a number and a
    text, so both are queried.
    """
    if column.type == "float":
        return (f"CAST({column.quoted} + 0e0 AS CHAR)",)
    if column.type in _NUMBERED:
        return (f"CAST({column.quoted} + 0 AS CHAR)", f"CAST({column.quoted} AS BINARY)")
    if column.type in _GEOMETRIES:
        return (f"HEX({column.quoted})",)
    if column.type == "json":
        return (f"CAST({column.quoted} AS CHAR)",)
    return (f"CAST({column.quoted} AS BINARY)",)


def server_value(column: ValueColumn, exact: bytes | None) -> SqlValue:
    """Return a column's value, taken from the server's answer to the first expression of `exact_values`."""
    if exact is None:
        return NULL
    kind = column.type
    if kind in _TEXTS or kind in _BYTES:
        return _text(column, exact)
    if kind == "json":
        return _text(replace(column, charset="utf8mb4"), exact)
    if kind in _GEOMETRIES:
        return _geometry(bytes.fromhex(exact.decode("ascii")))
    text = exact.decode("ascii")
    if kind in ("float", "double"):
        return _float(text)
    if kind in _INTEGERS or kind in _NUMBERED or kind == "decimal":
        return SqlValue(text, text, text)
    return _quoted(text)


def sql_value(column: ValueColumn, raw: bytes | None) -> SqlValue:
    """Return the value of a readable column, converted from its bytes in the binlog.

    Raises ValueError if the bytes are malformed.
    """
    if raw is None:
        return NULL
    kind = column.type
    if kind in _TEXTS or kind in _BYTES:
        return _text(column, raw)
    if kind in _INTEGERS:
        return _number(int.from_bytes(raw, "little", signed="unsigned" not in column.full_type))
    if kind in ("enum", "set"):
        return _number(int.from_bytes(raw, "little"))
    if kind == "bit":
        return _number(int.from_bytes(raw, "big"))
    if kind == "year":
        return _quoted("0000" if raw[0] == 0 else str(1900 + raw[0]))
    if kind in ("float", "double"):
        # Use the exact value of the FLOAT as a DOUBLE, because only this value equals the column in a comparison.
        return _float(repr(struct.unpack("<f" if kind == "float" else "<d", raw)[0]))
    if kind in _GEOMETRIES:
        return _geometry(raw)
    if kind == "decimal":
        text = _decimal(column, raw)
        return SqlValue(text, text, text)
    return _quoted(_moment(column, raw))


def _float(text: str) -> SqlValue:
    literal = text if "e" in text else f"{text}e0"
    return SqlValue(literal, literal, text)


def _geometry(raw: bytes) -> SqlValue:
    """Return a geometry value as the bytes of its SRID and WKB, the storage format of MySQL and MariaDB."""
    shown = raw[:_MOST_SHOWN].hex() + ("…" if len(raw) > _MOST_SHOWN else "")
    return SqlValue(f"x'{raw.hex()}'", f"'{raw.hex().upper()}'", f"0x{shown}")


def _number(number: int) -> SqlValue:
    return SqlValue(str(number), str(number), str(number))


def _quoted(text: str) -> SqlValue:
    return SqlValue(f"'{text}'", f"'{text}'", text)


def _text(column: ValueColumn, raw: bytes) -> SqlValue:
    if column.type == "binary":
        # The server omits trailing zero bytes (Field_string::pack).
        raw = raw.ljust(column.octets or 0, b"\0")
    literal = f"x'{raw.hex()}'"
    if column.charset is None:
        return SqlValue(literal, literal, f"0x{raw[:_MOST_SHOWN].hex()}{'…' if len(raw) > _MOST_SHOWN else ''}")
    is_plain = column.charset in _READABLE_CHARSETS and all(32 <= byte < 127 and byte not in b"'\\" for byte in raw)
    assigned = f"'{raw.decode('ascii')}'" if is_plain else f"_{column.charset} {literal}"
    shown = printable(raw[: 4 * _MOST_SHOWN].decode("utf-8", "replace"))
    return SqlValue(assigned, literal, f"'{shown[:_MOST_SHOWN]}{'…' if len(shown) > _MOST_SHOWN else ''}'")


def _decimal(column: ValueColumn, raw: bytes) -> str:
    """Return the value of a DECIMAL column as text, decoded from its bytes.

    Each group of nine digits has four bytes. The first bit is set unless the value is negative.
    """
    scale = column.scale or 0
    whole = (column.precision or 0) - scale
    is_negative = not raw[0] & 0x80
    data = bytes([raw[0] ^ 0x80, *raw[1:]])
    if is_negative:
        data = bytes(byte ^ 0xFF for byte in data)
    groups = [whole % 9, *[9] * (whole // 9)], [*[9] * (scale // 9), scale % 9]
    at, parts = 0, []
    for lengths in groups:
        digits = ""
        for length in lengths:
            size = _DIGITS[length]
            digits += str(int.from_bytes(data[at : at + size], "big")).zfill(length) if length else ""
            at += size
        parts.append(digits)
    text = (parts[0].lstrip("0") or "0") + (f".{parts[1]}" if parts[1] else "")
    return f"-{text}" if is_negative else text


def _moment(column: ValueColumn, raw: bytes) -> str:
    if column.type == "date":
        days = int.from_bytes(raw, "little")
        return f"{days >> 9:04}-{days >> 5 & 15:02}-{days & 31:02}"
    size = _FRACTIONAL[column.type][1]
    width = 8 * (len(raw) - size)
    number = int.from_bytes(raw, "big")
    if column.type == "timestamp":
        seconds = number >> width
        base = "0000-00-00 00:00:00" if number == 0 else _utc(seconds)
        return base + _fraction(column, number, width)
    number -= 1 << (8 * len(raw) - 1)
    sign, number = ("-", -number) if number < 0 else ("", number)
    packed = number >> width
    clock = f"{packed >> 12 & (0x3FF if column.type == 'time' else 31):02}:{packed >> 6 & 63:02}:{packed & 63:02}"
    if column.type == "time":
        return sign + clock + _fraction(column, number, width)
    months = packed >> 22
    day = f"{months // 13:04}-{months % 13:02}-{packed >> 17 & 31:02}"
    return f"{day} {clock}{_fraction(column, number, width)}"


def _utc(seconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def _fraction(column: ValueColumn, number: int, width: int) -> str:
    """Return the fractional digits of a time value as text. Each byte holds two digits."""
    if not column.fraction:
        return ""
    digits = str(number & ((1 << width) - 1)).zfill(width // 4)
    return f".{digits[: column.fraction]}"


METADATA_HINT = "SET PERSIST binlog_row_metadata = FULL (MariaDB: in an option file) lets later transactions be undone"


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key of the changed table, or of another table that references the changed table."""

    schema: str
    name: str
    table: str
    columns: tuple[str, ...]
    to_schema: str
    to_table: str
    to_columns: tuple[str, ...]
    on_update: str
    on_delete: str

    @property
    def changes_rows(self) -> bool:
        """Whether an update or deletion of referenced rows changes rows of `table`."""
        return not {self.on_update, self.on_delete} <= {"RESTRICT", "NO ACTION"}

    def __str__(self) -> str:
        return printable(f"foreign key {self.schema}.{self.name}")


@dataclass(frozen=True)
class UniqueKey:
    """A primary or unique key. Its parts, in order, are columns with prefix lengths, or expressions."""

    name: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"unique key {printable(self.name)}"


@dataclass(frozen=True)
class Trigger:
    """A trigger of the table."""

    name: str
    when: str
    statement: str

    def __str__(self) -> str:
        return f"trigger {printable(self.name)}"


@dataclass(frozen=True)
class TableShape:
    """The properties of a table that determine whether its changes can be undone.

    The columns were last changed at the time `made` (seconds since 1970 by the server's clock; None if unknown). The
    server also updates this time after changes that it does not log.
    """

    schema: str
    table: str
    columns: tuple[ValueColumn, ...]
    engine: str = "InnoDB"
    is_base: bool = True
    keys: tuple[UniqueKey, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    made: int | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.table)

    @property
    def has_key(self) -> bool:
        return any(column.key_part for column in self.columns)

    @property
    def cascades(self) -> tuple[ForeignKey, ...]:
        """The foreign keys that make the server change child rows when rows of this table change."""
        return tuple(
            key
            for key in self.foreign_keys
            if key.changes_rows and (key.to_schema, key.to_table) == (self.schema, self.table)
        )


def logged_difference(shape: TableShape, logged: Sequence[LoggedColumn], began: int) -> str | None:
    """Return why the table's columns may differ from those in the table map event; None if they are certainly the same.

    The argument `began` is the start of the transaction in seconds since 1970.
    """
    if len(logged) != len(shape.columns):
        return f"{shape.name} has {len(shape.columns)} columns, and had {len(logged)} then"
    for column, then in zip(shape.columns, logged, strict=True):
        difference = form_difference(column, then)
        if difference is not None:
            return f"column {printable(column.name)} of {shape.name} {difference} in the transaction"
    if all(then.name is not None for then in logged):
        return None
    if shape.made is not None and shape.made < began:
        return None
    return (
        f"the binlog has no names of columns (binlog_row_metadata is not FULL), and {shape.name} was made or changed"
        " after the transaction began, so which values were in which column is not known"
    )


def shape_difference(then: TableShape, now: TableShape) -> str | None:
    """Return how the table's present definition differs from that before the transaction; None if they are equal."""
    if not then.columns:
        return f"there was no table {now.name} right before the transaction"
    if then.engine.casefold() != now.engine.casefold() or then.is_base != now.is_base:
        return f"{now.name} is of engine {now.engine} now, and was of {then.engine} right before the transaction"
    names = [column.name for column in then.columns], [column.name for column in now.columns]
    if names[0] != names[1]:
        lists = [printable(", ".join(each)) for each in names]
        return f"{now.name} has the columns {lists[1]} now, and had {lists[0]} right before the transaction"
    for old, new in zip(then.columns, now.columns, strict=True):
        if old != new:
            facts = " and ".join(_described(column) for column in (old, new))
            return f"column {printable(new.name)} of {now.name} was and is something else: {facts}"
    for kind in ("keys", "foreign_keys", "triggers"):
        old_ones, new_ones = set(getattr(then, kind)), set(getattr(now, kind))
        for gone in sorted(map(str, old_ones - new_ones)):
            return f"{now.name} had the {gone} right before the transaction, and has it no more, or another one"
        for more in sorted(map(str, new_ones - old_ones)):
            return f"{now.name} has the {more} now, and had it not right before the transaction"
    return None


def _described(column: ValueColumn) -> str:
    parts = [column.full_type, column.collation or "", "" if column.is_nullable else "NOT NULL", column.expression]
    key = f"part {column.key_part} of the primary key" if column.key_part else ""
    return printable(" ".join(part for part in (*parts, key) if part))
