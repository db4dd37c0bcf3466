"""What a table map says of its columns beyond their types: signs, collations, names, the values of ENUM and SET.

MySQL writes signs and collations, and all of it with binlog_row_metadata=FULL; MariaDB writes nothing by default.
Sources: Table_map_event::Optional_metadata_fields in libs/mysql/binlog/event/rows_event.h of MySQL 9.x, and
Table_map_log_event::init_metadata_fields in sql/log_event_server.cc of MySQL and MariaDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zsnapdb.mysql.binlog.event_bytes import EventBytes
from zsnapdb.mysql.binlog.rows import TableMap

_SIGNS, _DEFAULT_COLLATION, _COLLATIONS, _NAMES, _SETS, _ENUMS = 1, 2, 3, 4, 5, 6
_NUMBERED_DEFAULT, _NUMBERED_COLLATIONS = 10, 11
_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 13, 246})
"""The types with a sign. YEAR is one of them."""
TEXTS = frozenset({15, 249, 250, 251, 252, 253, 254})
"""The types with a collation."""
TEXTS_AND_GEOMETRY = TEXTS | {255}
"""The types with a collation in table maps of MariaDB: geometry has that of bytes (seen in MariaDB 11.8, MySQL 9.7)."""
_ENUM, _SET = 247, 248


@dataclass(frozen=True)
class ColumnMetadata:
    """What a table map says of one column. None: it does not say."""

    name: str | None = None
    is_unsigned: bool | None = None
    collation: int | None = None
    members: tuple[bytes, ...] | None = None


@dataclass
class _Known:
    names: tuple[str, ...] | None = None
    unsigned: dict[int, bool] = field(default_factory=dict)
    collations: dict[int, int] = field(default_factory=dict)
    members: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


def table_metadata(table: TableMap, body: EventBytes, texts: frozenset[int]) -> tuple[ColumnMetadata, ...]:
    """Return what the rest of a TABLE_MAP event, after its columns, says of each column.

    `texts` are the types with a collation, which depend on the server. ValueError if it is malformed.
    """
    if table.columns is None:
        return ()
    kinds = [column.numbered or code for column, code in zip(table.columns, table.types, strict=True)]
    body.skip((len(kinds) + 7) // 8)
    known = _Known()
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


def _add(known: _Known, kinds: Sequence[int], about: int, value: EventBytes, texts: frozenset[int]) -> None:
    """Add one field. A field that is not known here is passed over."""
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
    """Return the number of the collation of each place: a default with exceptions, or one after the other."""
    if not has_default:
        return {place: value.packed() for place in places}
    found = dict.fromkeys(places, value.packed())
    while not value.is_at_end():
        place = value.packed()
        if place >= len(places):
            raise ValueError(f"a collation is of text column {place} of {len(places)}")
        found[places[place]] = value.packed()
    return found


def _texts(value: EventBytes) -> Iterator[bytes]:
    for _ in range(value.packed()):
        yield value.take(value.packed())
