"""Definitions of tables, views, triggers, routines and events, as the server writes them."""

from __future__ import annotations

from itertools import groupby

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema.schema_catalogue import has_column, names, schemas, stored_programs
from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.binlog.row_values import ForeignKey, TableShape, Trigger, UniqueKey, ValueColumn
from zsnapdb.planning.clone.diff import definition
from zsnapdb.planning.sql_quoting import TableName, quoted

_ALL = 1_000_000
"""A limit that exceeds the number of tables in any schema."""
_COLUMN = {"TABLE": 1, "EVENT": 3}
_COLUMN_OF_CODE = 2


def definitions_of(session: Session) -> dict[TableName, str]:
    """Return the SHOW CREATE TABLE text of each user table and view, without AUTO_INCREMENT counters.

    For a table that cannot be opened, the text is the error message. SHOW CREATE TABLE also accepts views (refman 8.4,
    "SHOW CREATE TABLE Statement").
    """
    tables = [TableName(schema, table) for schema in _of_users(session) for table in names(session, schema, _ALL)]
    return {table: definition(_definition(session, "TABLE", table.schema, str(table.table))) for table in tables}


def all_definitions_of(session: Session) -> dict[str, str]:
    """Return the SHOW CREATE text of each user table, view, trigger, routine and event.

    The keys are `schema.name` for tables and views, and `kind schema.name` for programs. Each kind of program has the
    statement in a different column (refman 8.4, "SHOW CREATE TRIGGER Statement", "SHOW CREATE EVENT Statement", "SHOW
    CREATE PROCEDURE Statement").
    """
    return {
        **{str(table): text for table, text in definitions_of(session).items()},
        **{
            f"{kind.lower()} {TableName(schema, name)}": _definition(session, kind, schema, name)
            for schema in _of_users(session)
            for kind, name in stored_programs(session, schema)
        },
    }


def _of_users(session: Session) -> list[str]:
    return [schema for schema in schemas(session) if schema not in SYSTEM_SCHEMAS]


def _definition(session: Session, kind: str, schema: str, name: str) -> str:
    try:
        return str(session.query(f"SHOW CREATE {kind} {quoted(schema, name)}")[0][_COLUMN.get(kind, _COLUMN_OF_CODE)])
    except ServerError as error:
        return error.message


_COLUMNS = (
    "SELECT column_name, data_type, column_type, character_set_name, character_octet_length, numeric_precision,"
    " numeric_scale, datetime_precision, extra, COALESCE(generation_expression, ''), collation_name, is_nullable"
    " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_KEYS = (
    "SELECT index_name, seq_in_index, column_name, sub_part, {expression} FROM information_schema.statistics"
    " WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index"
)
_TABLE = (
    "SELECT engine, table_type, UNIX_TIMESTAMP(create_time) FROM information_schema.tables"
    " WHERE table_schema = %s AND table_name = %s"
)
_TRIGGERS = (
    "SELECT trigger_name, action_timing, event_manipulation, action_order, action_statement"
    " FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s"
)
_FOREIGN_KEYS = (
    "SELECT constraint_schema, constraint_name, table_name, unique_constraint_schema, referenced_table_name,"
    " update_rule, delete_rule FROM information_schema.referential_constraints WHERE (constraint_schema = %s AND"
    " table_name = %s) OR (unique_constraint_schema = %s AND referenced_table_name = %s)"
)
_FOREIGN_COLUMNS = (
    "SELECT column_name, referenced_column_name FROM information_schema.key_column_usage WHERE table_schema = %s AND"
    " table_name = %s AND constraint_name = %s AND referenced_column_name IS NOT NULL ORDER BY ordinal_position"
)
_COLLATIONS = "SELECT collation_name, id FROM information_schema.collations WHERE id IS NOT NULL"
_FULL_COLLATIONS = "SELECT full_collation_name, id FROM information_schema.collation_character_set_applicability"


class TableShapes:
    """Reads table definitions in one session.

    The session's time zone is set to UTC, so that times are unambiguous. An account without the privilege TRIGGER sees
    no triggers (refman 8.4, "The INFORMATION_SCHEMA TRIGGERS Table").
    """

    def __init__(self, session: Session) -> None:
        session.query("SET SESSION time_zone = '+00:00'")
        self._session = session
        has_full = has_column(session, "COLLATION_CHARACTER_SET_APPLICABILITY", "FULL_COLLATION_NAME")
        self._collations: dict[str, int] = dict(session.query(_FULL_COLLATIONS if has_full else _COLLATIONS))
        has_expressions = has_column(session, "STATISTICS", "EXPRESSION")
        self._keys = _KEYS.format(expression="expression" if has_expressions else "NULL")

    def read(self, schema: str, table: str) -> TableShape:
        """Return the definition of a table.

        If the table does not exist, or the account cannot see it, the definition has no columns.
        """
        names = (schema, table)
        keys = self._session.query(self._keys, names)
        kinds = self._session.query(_TABLE, names)
        engine, table_type, made = kinds[0] if kinds else ("", "", None)
        return TableShape(
            schema,
            table,
            self._columns(names, {str(row[2]): int(row[1]) for row in keys if row[0] == "PRIMARY"}),
            str(engine),
            str(table_type) == "BASE TABLE",
            tuple(
                UniqueKey(str(name), tuple(f"{row[2]}({row[3]}) {row[4]}" for row in rows))
                for name, rows in groupby(keys, key=lambda row: row[0])
            ),
            self._foreign_keys(names),
            tuple(
                Trigger(str(name), f"{timing} {event} {order}", _text(statement))
                for name, timing, event, order, statement in self._session.query(_TRIGGERS, names)
            ),
            _number(made),
        )

    def _columns(self, names: tuple[str, str], key: dict[str, int]) -> tuple[ValueColumn, ...]:
        return tuple(self._column(row, key.get(str(row[0]), 0)) for row in self._session.query(_COLUMNS, names))

    def _column(self, row: Row, key_part: int) -> ValueColumn:
        name, kind, full, charset, octets, precision, scale, fraction, extra, expression, collation, nullable = row
        return ValueColumn(
            name=str(name),
            type=str(kind).lower(),
            full_type=_text(full),
            key_part=key_part,
            charset=None if charset is None else str(charset),
            octets=_number(octets),
            precision=_number(precision),
            scale=_number(scale),
            fraction=_number(fraction) or 0,
            is_generated=bool(_text(expression))
            or "GENERATED" in _text(extra).upper().replace("DEFAULT_GENERATED", ""),
            collation=None if collation is None else str(collation),
            collation_id=None if collation is None else self._collations.get(str(collation)),
            is_nullable=str(nullable) == "YES",
            expression=_text(expression),
        )

    def _foreign_keys(self, names: tuple[str, str]) -> tuple[ForeignKey, ...]:
        found = []
        for schema, name, table, to_schema, to_table, on_update, on_delete in self._session.query(
            _FOREIGN_KEYS, (*names, *names)
        ):
            columns = self._session.query(_FOREIGN_COLUMNS, (schema, table, name))
            found.append(
                ForeignKey(
                    str(schema),
                    str(name),
                    str(table),
                    tuple(str(row[0]) for row in columns),
                    str(to_schema),
                    str(to_table),
                    tuple(str(row[1]) for row in columns),
                    str(on_update),
                    str(on_delete),
                )
            )
        return tuple(found)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _number(value: object) -> int | None:
    return None if value is None else int(str(value).partition(".")[0])
