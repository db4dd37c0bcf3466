"""The definitions of tables and views, and of triggers, routines and events, as the server writes them."""

from __future__ import annotations

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema.schema_catalogue import names, schemas, stored_programs
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.schema_difference import definition
from zsnapdb.planning.quoting import quoted
from zsnapdb.planning.table_name import TableName

_ALL = 1_000_000
"""More tables than a schema has."""
_COLUMN = {"TABLE": 1, "EVENT": 3}
_COLUMN_OF_CODE = 2


def definitions_of(session: Session) -> dict[TableName, str]:
    """Return what SHOW CREATE TABLE says of each table and view of the users, without the counter of a table.

    One that cannot be opened has its error.
    SHOW CREATE TABLE takes views too (refman 8.4, "SHOW CREATE TABLE Statement").
    """
    tables = [TableName(schema, table) for schema in _of_users(session) for table in names(session, schema, _ALL)]
    return {table: definition(_definition(session, "TABLE", table.schema, str(table.table))) for table in tables}


def all_definitions_of(session: Session) -> dict[str, str]:
    """Return what SHOW CREATE says of each table, view, trigger, routine and event of the users.

    The names are `schema.name` of tables and views, and `kind schema.name` of programs.

    The statement is in another column for each kind (refman 8.4, "SHOW CREATE TRIGGER Statement", "SHOW CREATE EVENT
    Statement", "SHOW CREATE PROCEDURE Statement").
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
