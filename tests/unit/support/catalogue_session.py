"""A session with a real `information_schema` for the statements of the catalogue: tables in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zsnapdb.mysql.session import Address, Session

_TABLES = {
    "schemata": "schema_name, default_character_set_name, default_collation_name",
    "tables": "table_schema, table_name, table_type, engine, create_options, data_length, index_length",
    "columns": "table_schema, table_name, column_name, ordinal_position, data_type, column_default,"
    " generation_expression",
    "routines": "routine_schema, routine_type, routine_name",
    "events": "event_schema, event_name",
    "triggers": "trigger_schema, trigger_name, event_object_schema, event_object_table",
}


class CatalogueSession(Session):
    """Answers the queries of the catalogue from the rows of a test."""

    def __init__(self) -> None:
        self.address = Address("root", Path("/run/server.sock"))
        self._base = sqlite3.connect(":memory:")
        self._base.execute("ATTACH ':memory:' AS information_schema")
        self._base.execute("ATTACH ':memory:' AS mysql")
        self._base.execute("CREATE TABLE mysql.plugin (name, dl)")
        for name, columns in _TABLES.items():
            self._base.execute(f"CREATE TABLE information_schema.{name} ({columns})")

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if parameters:
            sql = sql.replace("%s", "?").replace("%%", "%")
        return self._base.execute(sql, tuple(parameters)).fetchall()

    def close(self) -> None:
        self._base.close()

    def put(self, table: str, **values: object) -> None:
        """Insert a row into a table of information_schema."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self._base.execute(f"INSERT INTO information_schema.{table} ({names}) VALUES ({marks})", tuple(values.values()))

    def put_hidden_event(self, schema: str, name: str) -> None:
        """Insert an event into the server's own table of events, which only MariaDB has."""
        if not self._base.execute("SELECT name FROM mysql.sqlite_master WHERE name = 'event'").fetchall():
            self._base.execute("CREATE TABLE mysql.event (db, name)")
            self.put_table("mysql", "event", "BASE TABLE", "Aria")
        self._base.execute("INSERT INTO mysql.event VALUES (?, ?)", (schema, name))

    def put_plugin(self, name: str, library: str) -> None:
        """Insert a plugin into the server's list of installed plugins."""
        self._base.execute("INSERT INTO mysql.plugin VALUES (?, ?)", (name, library))

    def put_table(self, schema: str, name: str, kind: str, engine: str | None) -> None:
        """Insert a table of one page."""
        self.put("tables", table_schema=schema, table_name=name, table_type=kind, engine=engine, data_length=16384)
