"""The definitions of tables and views, as the server writes them."""

from __future__ import annotations

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.session import Session
from zsnapdb.planning.quoting import quoted
from zsnapdb.planning.table_name import TableName


def definitions_of(session: Session) -> dict[TableName, str]:
    """Return what SHOW CREATE TABLE says of each table and view of the users. One that cannot be opened has its error.

    SHOW CREATE TABLE takes views too (refman 8.4, "SHOW CREATE TABLE Statement").
    """
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    rows = session.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN"
        f" ({marks}) ORDER BY table_schema, table_name",
        tuple(SYSTEM_SCHEMAS),
    )
    found = {}
    for schema, table in rows:
        try:
            text = str(session.query(f"SHOW CREATE TABLE {quoted(str(schema), str(table))}")[0][1])
        except ServerError as error:
            text = error.message
        found[TableName(str(schema), str(table))] = text
    return found
