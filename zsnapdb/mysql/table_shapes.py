"""The form of a table of a live server, as far as it decides whether changes of its rows can be undone."""

from __future__ import annotations

from zsnapdb.mysql.session import Session
from zsnapdb.planning.binlog.row_values import ValueColumn
from zsnapdb.planning.binlog.undo import TableShape

_COLUMNS = (
    "SELECT column_name, data_type, column_type, character_set_name, character_octet_length, numeric_precision,"
    " numeric_scale, datetime_precision, extra, COALESCE(generation_expression, '') FROM information_schema.columns"
    " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_KEY = (
    "SELECT column_name, seq_in_index FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s"
    " AND index_name = 'PRIMARY'"
)
_TABLE = "SELECT engine, table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
_TRIGGERS = (
    "SELECT COUNT(*) FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s"
)
_CASCADES = (
    "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE unique_constraint_schema = %s AND"
    " referenced_table_name = %s AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN"
    " ('CASCADE', 'SET NULL', 'SET DEFAULT'))"
)


def table_shape(session: Session, schema: str, table: str) -> TableShape:
    """Return the form of a table. It has no columns if the table does not exist, or the account cannot see it.

    An account without the privilege TRIGGER sees no triggers (refman 8.4, "The INFORMATION_SCHEMA TRIGGERS Table").
    """
    names = (schema, table)
    key = {str(name): int(part) for name, part in session.query(_KEY, names)}
    columns = tuple(
        ValueColumn(
            name=str(name),
            type=str(kind).lower(),
            full_type=_text(full).lower(),
            key_part=key.get(str(name), 0),
            charset=None if charset is None else str(charset),
            octets=_number(octets),
            precision=_number(precision),
            scale=_number(scale),
            fraction=_number(fraction) or 0,
            is_generated=bool(_text(expression))
            or "GENERATED" in _text(extra).upper().replace("DEFAULT_GENERATED", ""),
        )
        for name, kind, full, charset, octets, precision, scale, fraction, extra, expression in session.query(
            _COLUMNS, names
        )
    )
    kinds = session.query(_TABLE, names)
    engine, table_type = (str(kinds[0][0]), str(kinds[0][1])) if kinds else ("", "")
    return TableShape(
        schema,
        table,
        columns,
        engine,
        table_type == "BASE TABLE",
        int(session.query(_TRIGGERS, names)[0][0]),
        int(session.query(_CASCADES, names)[0][0]),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))
