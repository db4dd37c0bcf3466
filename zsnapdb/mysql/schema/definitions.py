"""The definitions of tables and views, as the server writes them."""

from __future__ import annotations

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema.schema_catalogue import names, schemas
from zsnapdb.mysql.session import Session
from zsnapdb.planning.quoting import quoted
from zsnapdb.planning.table_name import TableName

_ALL = 1_000_000
"""More tables than a schema has."""


def definitions_of(session: Session) -> dict[TableName, str]:
    """Return what SHOW CREATE TABLE says of each table and view of the users. One that cannot be opened has its error.

    SHOW CREATE TABLE takes views too (refman 8.4, "SHOW CREATE TABLE Statement").
    """
    users = (schema for schema in schemas(session) if schema not in SYSTEM_SCHEMAS)
    tables = [TableName(schema, table) for schema in users for table in names(session, schema, _ALL)]
    return {table: _definition(session, table) for table in tables}


def _definition(session: Session, table: TableName) -> str:
    try:
        return str(session.query(f"SHOW CREATE TABLE {quoted(table.schema, str(table.table))}")[0][1])
    except ServerError as error:
        return error.message
