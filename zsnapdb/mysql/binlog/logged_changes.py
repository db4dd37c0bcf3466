"""Statements, row counts and row images in the events of a binlog. Table maps describe the format of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.event_bytes import EventBytes, inflated
from zsnapdb.planning.binlog.changes import MOST_TEXT, ChangeKind, LoggedStatement

_V1 = {23: ChangeKind.INSERT, 24: ChangeKind.UPDATE, 25: ChangeKind.DELETE}
_V2 = {30: ChangeKind.INSERT, 31: ChangeKind.UPDATE, 32: ChangeKind.DELETE, 39: ChangeKind.UPDATE}
_COMPRESSED_V1 = {166: ChangeKind.INSERT, 167: ChangeKind.UPDATE, 168: ChangeKind.DELETE}
_COMPRESSED_V2 = {169: ChangeKind.INSERT, 170: ChangeKind.UPDATE, 171: ChangeKind.DELETE}
_PARTIAL = 39
ROW_EVENTS = {**_V1, **_V2, **_COMPRESSED_V1, **_COMPRESSED_V2}
"""The types of row events, each with the kind of change that it makes."""

_MOST_COLUMNS = 4096
_STATEMENT_ENDS = 1

_FIXED = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 0, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, 13: 1, 14: 3}
_FRACTIONAL = {17: 4, 18: 5, 19: 3}
_JSON = 245
_BLOBS = {140, 242, _JSON, 249, 250, 251, 252, 255}
_TEXTS = {15, 141, 253}
_BIT, _DECIMAL, _ENUM, _SET, _STRING = 16, 246, 247, 248, 254
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


@dataclass(frozen=True, slots=True)
class RowColumn:
    """The format of a column's values. A value has `fixed` bytes, or its first `prefix` bytes contain its length.

    The meaning of `size` depends on the column's type. It is a text's maximum length in bytes (CHAR, VARCHAR), a time's
    fractional digits, a DECIMAL's precision times 256 plus scale, or the number of bits in a BIT. For other types,
    `size` is 0. `numbered` is 247 for an ENUM and 248 for a SET, which have the type of a CHAR in the event; otherwise
    0.
    """

    prefix: int
    fixed: int
    is_json: bool = False
    size: int = 0
    numbered: int = 0


@dataclass(frozen=True)
class TableMap:
    """The table to which the following row events belong. `columns` is None if the format of a column is unknown.

    `types` contains the column types as the event stores them. An ENUM or a SET has the type 254 (CHAR).
    """

    id: int
    schema: bytes
    table: bytes
    width: int
    columns: tuple[RowColumn, ...] | None
    types: bytes = b""


def table_map(body: EventBytes) -> TableMap:
    """Return the table map in a TABLE_MAP event. Raises ValueError if the event is malformed.

    Afterwards `body` is positioned at the NULL bits of the columns, unless the result's `columns` is None.
    """
    number = body.integer(6)
    body.skip(2)
    schema = body.take(body.packed())
    body.skip(1)
    table = body.take(body.packed())
    body.skip(1)
    width = body.packed()
    if width > _MOST_COLUMNS:
        raise ValueError(f"invalid number of columns in a table: {width}")
    types = body.take(width)
    details = EventBytes([body.take(body.packed())])
    columns: list[RowColumn] = []
    for kind in types:
        column = _column(kind, details)
        if column is None:
            return TableMap(number, schema, table, width, None, types)
        columns.append(column)
    return TableMap(number, schema, table, width, tuple(columns), types)


def _column(kind: int, details: EventBytes) -> RowColumn | None:
    """Return the format of a column with the type `kind` after reading its details; None for an unknown type."""
    if kind in _FIXED:
        if kind in (4, 5):
            details.skip(1)
        return RowColumn(0, _FIXED[kind])
    if kind in _FRACTIONAL:
        digits = details.integer(1)
        return RowColumn(0, _FRACTIONAL[kind] + (digits + 1) // 2, size=digits)
    if kind in _BLOBS:
        prefix = details.integer(1)
        return RowColumn(prefix, 0, kind == _JSON) if 1 <= prefix <= 4 else None
    if kind in _TEXTS:
        longest = details.integer(2)
        return RowColumn(1 if longest < 256 else 2, 0, size=longest)
    first, second = (details.take(2)) if kind in (_BIT, _DECIMAL, _ENUM, _SET, _STRING) else (0, 0)
    if kind == _BIT:
        return RowColumn(0, second + (first > 0), size=8 * second + first)
    if kind == _DECIMAL:
        return _decimal(first, second)
    if kind in (_ENUM, _SET):
        return RowColumn(0, second, numbered=kind)
    return _string(first, second) if kind == _STRING else None


def _decimal(precision: int, scale: int) -> RowColumn | None:
    """Return the format of a DECIMAL column.

    The column's length is computed as in decimal_bin_size() of strings/decimal.cc.
    """
    if scale > precision:
        return None
    whole = precision - scale
    length = whole // 9 * 4 + _DIGITS[whole % 9] + scale // 9 * 4 + _DIGITS[scale % 9]
    return RowColumn(0, length, size=precision << 8 | scale)


def _string(first: int, second: int) -> RowColumn:
    """Return the format of a CHAR, ENUM or SET column. The type byte contains two bits of a CHAR's length."""
    if first & 0x30 != 0x30:
        longest = (first & 0x30 ^ 0x30) << 4 | second
        return RowColumn(1 if longest < 256 else 2, 0, size=longest)
    if first in (_ENUM, _SET):
        return RowColumn(0, second, numbered=first)
    return RowColumn(1, 0, size=second)


@dataclass(frozen=True)
class RowsHead:
    """Header of a row event: the kind of change, the table map id, and whether the event ends its statement."""

    event: int
    kind: ChangeKind
    table: int
    ends_statement: bool


def rows_head(event: int, body: EventBytes) -> RowsHead:
    """Return the header of a row event. Afterwards `body` is positioned at the column count."""
    number, flags = body.integer(6), body.integer(2)
    if event in _V2 or event in _COMPRESSED_V2:
        body.skip(max(0, body.integer(2) - 2))
    return RowsHead(event, ROW_EVENTS[event], number, bool(flags & _STATEMENT_ENDS))


def count_rows(head: RowsHead, table: TableMap, body: EventBytes) -> int | None:
    """Return the number of rows in the rest of a row event; None if the number is unknown."""
    if table.columns is None:
        return None
    try:
        images, body = _images(head, table, body)
        if not any(image.columns for image in images):
            return None
        documents = sum(column.is_json for column in table.columns) if head.event == _PARTIAL else None
        rows = 0
        while not body.is_at_end():
            images[0].skip(body)
            if len(images) == 2:
                if documents is not None and body.packed() & 1:
                    # For each JSON column, a bit shows whether the value is stored as a difference
                    # (Rows_log_event::unpack).
                    body.skip((documents + 7) // 8)
                images[1].skip(body)
            rows += 1
        return rows
    except ValueError:
        # The event's checksum is correct, so a column must have an unknown format.
        return None


RowImage = dict[int, bytes | None]
"""Raw values of a row, by column index. None means NULL. The value of an absent column is unknown."""


def row_images(head: RowsHead, table: TableMap, body: EventBytes) -> Iterator[tuple[RowImage | None, RowImage | None]]:
    """Yield each row in the rest of a row event before and after the change. None stands for a row that did not exist.

    If an update omits a value, the value before the change is used (binlog_row_image=FULL_NODUP of MariaDB). A JSON
    value is omitted if the event contains only its difference from the old value. Raise ValueError if the format of a
    column is unknown.
    """
    images, body = _images(head, table, body)
    while not body.is_at_end():
        first = images[0].read(body)
        if len(images) == 2:
            cut = _differences(table, body) if head.event == _PARTIAL else ()
            after = {**first, **images[1].read(body)}
            yield first, {place: value for place, value in after.items() if place not in cut}
        elif head.kind is ChangeKind.INSERT:
            yield None, first
        else:
            yield first, None


def _images(head: RowsHead, table: TableMap, body: EventBytes) -> tuple[list[_Image], EventBytes]:
    width = body.packed()
    if table.columns is None or width != table.width:
        raise ValueError("a column has an unknown format")
    columns, count = table.columns, 2 if head.kind is ChangeKind.UPDATE else 1
    images = [_Image(columns, body.take((width + 7) // 8)) for _ in range(count)]
    is_compressed = head.event in _COMPRESSED_V1 or head.event in _COMPRESSED_V2
    return images, EventBytes(inflated(body)) if is_compressed else body


def _differences(table: TableMap, body: EventBytes) -> tuple[int, ...]:
    """Return the JSON columns that the next row stores as a difference (Rows_log_event::unpack)."""
    if not body.packed() & 1:
        return ()
    documents = [place for place, column in enumerate(table.columns or ()) if column.is_json]
    bits = body.integer((len(documents) + 7) // 8)
    return tuple(place for number, place in enumerate(documents) if bits >> number & 1)


class _Image:
    """The columns that a row image contains."""

    def __init__(self, columns: tuple[RowColumn, ...], present: bytes) -> None:
        bits = int.from_bytes(present, "little")
        self._places = tuple(place for place in range(len(columns)) if bits >> place & 1)
        self.columns = tuple(columns[place] for place in self._places)
        self._nulls = (len(self.columns) + 7) // 8
        self._steps = _steps(self.columns)

    def skip(self, body: EventBytes) -> None:
        """Skip one row, which consists of NULL bits and the values of non-NULL columns."""
        nulls = int.from_bytes(body.take(self._nulls), "little")
        steps = self._steps
        if nulls:
            steps = _steps(tuple(column for place, column in enumerate(self.columns) if not nulls >> place & 1))
        for prefix, fixed in steps:
            body.skip(body.integer(prefix) if prefix else fixed)

    def read(self, body: EventBytes) -> RowImage:
        nulls = int.from_bytes(body.take(self._nulls), "little")
        values: RowImage = {}
        for number, (place, column) in enumerate(zip(self._places, self.columns, strict=True)):
            is_null = nulls >> number & 1
            length = 0 if is_null else body.integer(column.prefix) if column.prefix else column.fixed
            values[place] = None if is_null else body.take(length)
        return values


def _steps(columns: tuple[RowColumn, ...]) -> list[tuple[int, int]]:
    """Return the prefix length and fixed length of each value. Adjacent values of fixed length become one entry."""
    steps: list[tuple[int, int]] = []
    for column in columns:
        if not column.prefix and steps and not steps[-1][0]:
            steps[-1] = (0, steps[-1][1] + column.fixed)
        else:
            steps.append((column.prefix, column.fixed))
    return steps


_SIGNS, _DEFAULT_COLLATION, _COLLATIONS, _NAMES, _SETS, _ENUMS = 1, 2, 3, 4, 5, 6
_NUMBERED_DEFAULT, _NUMBERED_COLLATIONS = 10, 11
_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 13, 246})
"""Column types that can be signed, including YEAR."""
TEXTS = frozenset({15, 249, 250, 251, 252, 253, 254})
"""Column types with a collation."""
TEXTS_AND_GEOMETRY = TEXTS | {255}
"""Column types with a collation in MariaDB's table maps.

Geometry has `binary` (observed in MariaDB 11.8, MySQL 9.7).
"""


@dataclass(frozen=True)
class ColumnMetadata:
    """Optional metadata of one column in a table map. If the event does not contain a field, the field is None."""

    name: str | None = None
    is_unsigned: bool | None = None
    collation: int | None = None
    members: tuple[bytes, ...] | None = None


@dataclass
class _OptionalMetadata:
    names: tuple[str, ...] | None = None
    unsigned: dict[int, bool] = field(default_factory=dict)
    collations: dict[int, int] = field(default_factory=dict)
    members: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


def table_metadata(table: TableMap, body: EventBytes, texts: frozenset[int]) -> tuple[ColumnMetadata, ...]:
    """Return the metadata of each column from the rest of a TABLE_MAP event, after its columns.

    `texts` contains the server's column types that have a collation. Raises ValueError if the event is malformed.
    """
    if table.columns is None:
        return ()
    kinds = [column.numbered or code for column, code in zip(table.columns, table.types, strict=True)]
    body.skip((len(kinds) + 7) // 8)
    known = _OptionalMetadata()
    while not body.is_at_end():
        about = body.integer(1)
        _add(known, kinds, about, EventBytes([body.take(body.packed())]), texts)
    return tuple(
        ColumnMetadata(
            known.names[place] if known.names is not None else None,
            known.unsigned.get(place),
            known.collations.get(place),
            known.members.get(place),
        )
        for place in range(len(kinds))
    )


def _add(known: _OptionalMetadata, kinds: Sequence[int], about: int, value: EventBytes, texts: frozenset[int]) -> None:
    """Add one metadata field to `known`, or skip the field if it is unknown."""
    if about == _SIGNS:
        numeric = _places(kinds, _NUMERIC)
        bits = value.take((len(numeric) + 7) // 8)
        known.unsigned = {place: bool(bits[n // 8] & 0x80 >> n % 8) for n, place in enumerate(numeric)}
    elif about in (_DEFAULT_COLLATION, _COLLATIONS):
        known.collations.update(_collations(_places(kinds, texts), value, has_default=about == _DEFAULT_COLLATION))
    elif about in (_NUMBERED_DEFAULT, _NUMBERED_COLLATIONS):
        places = _places(kinds, frozenset({_ENUM, _SET}))
        known.collations.update(_collations(places, value, has_default=about == _NUMBERED_DEFAULT))
    elif about == _NAMES:
        known.names = tuple(value.take(value.packed()).decode("utf-8") for _ in kinds)
    elif about in (_SETS, _ENUMS):
        places = _places(kinds, frozenset({_SET if about == _SETS else _ENUM}))
        known.members.update((place, tuple(_texts(value))) for place in places)


def _places(kinds: Sequence[int], wanted: frozenset[int]) -> list[int]:
    return [place for place, kind in enumerate(kinds) if kind in wanted]


def _collations(places: Sequence[int], value: EventBytes, *, has_default: bool) -> dict[int, int]:
    """Return the collation id of each column.

    The event contains either a default collation with exceptions, or one collation id per column.
    """
    if not has_default:
        return {place: value.packed() for place in places}
    found = dict.fromkeys(places, value.packed())
    while not value.is_at_end():
        place = value.packed()
        if place >= len(places):
            raise ValueError(f"a collation refers to text column {place}, but there are {len(places)}")
        found[places[place]] = value.packed()
    return found


def _texts(value: EventBytes) -> Iterator[bytes]:
    for _ in range(value.packed()):
        yield value.take(value.packed())


_KINDS = {
    "INSERT": ChangeKind.INSERT,
    "REPLACE": ChangeKind.INSERT,
    "LOAD": ChangeKind.INSERT,
    "UPDATE": ChangeKind.UPDATE,
    "DELETE": ChangeKind.DELETE,
    **dict.fromkeys(
        (
            "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR",
            "INSTALL", "UNINSTALL", "IMPORT", "FLUSH", "SET",
        ),
        ChangeKind.DDL,
    ),
}  # fmt: skip
_CONTROL = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "START"}
_CONDITIONAL = re.compile(r"/\*(?:M?!)[0-9]*")
_WORD = re.compile(r"[A-Za-z]+")


def query(body: EventBytes, *, extra: int = 0) -> tuple[str, EventBytes]:
    """Return a query event's default schema in printable form, and the body positioned at the statement's text."""
    schema, text = raw_query(body, extra=extra)
    return printable(schema.decode("utf-8", "replace")), text


def raw_query(body: EventBytes, *, extra: int = 0) -> tuple[bytes, EventBytes]:
    """Return the raw default schema of a query event, and the body positioned at the statement's text.

    The event contains, in this order: thread, duration, schema length (u8), error, length of the status variables
    (u16), `extra` bytes, status variables, schema, a zero byte, text.
    """
    body.skip(8)
    length = body.integer(1)
    body.skip(2)
    variables = body.integer(2)
    body.skip(extra + variables)
    schema = body.take(length)
    body.skip(1)
    return schema, body


def statement(schema: str, text: EventBytes) -> LoggedStatement | None:
    """Return the statement of a query event; None if the statement only starts or ends a transaction or savepoint."""
    raw = text.up_to(MOST_TEXT)
    whole = raw.decode("utf-8", "replace")
    word = first_word(whole)
    if word in _CONTROL:
        return None
    return LoggedStatement(_KINDS.get(word, ChangeKind.OTHER), schema, printable(whole), not text.is_at_end())


def first_word(text: str) -> str:
    """Return a statement's first word after comments and parentheses, in upper case; empty if it has no words."""
    at = 0
    while at < len(text):
        conditional = _CONDITIONAL.match(text, at)
        if conditional is not None:
            at = conditional.end()
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif text.startswith(("--", "#"), at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
        elif text[at].isspace() or text[at] in "(;":
            at += 1
        else:
            break
    match = _WORD.match(text, at)
    return match.group().upper() if match is not None else ""
