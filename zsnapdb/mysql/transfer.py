"""The statements that move a table or a schema from one server to another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.mysql import schema_catalogue
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import stop_logging
from zsnapdb.planning.quoting import quoted
from zsnapdb.planning.schema_content import SchemaContent
from zsnapdb.planning.trial.rescue import TableKind, TableName


def move_away(session: Session, schema: str, table: str, target: TableName) -> list[str]:
    """Move a table to `target`, in a new schema, without triggers and foreign keys; return the names left out.

    Only for an ephemeral server.
    """
    left_out = []
    session.query("SET SESSION foreign_key_checks = 0")
    for trigger in schema_catalogue.triggers_of(session, schema, table):
        session.query(f"DROP TRIGGER {quoted(schema, trigger)}")
        left_out.append(f"trigger {trigger}")
    session.query(f"CREATE DATABASE {quoted(target.schema)}")
    session.query(f"RENAME TABLE {quoted(schema, table)} TO {_quoted(target)}")
    keys = session.query(
        "SELECT constraint_name FROM information_schema.table_constraints WHERE table_schema = %s AND table_name = %s"
        " AND constraint_type = 'FOREIGN KEY'",
        (target.schema, target.table),
    )
    for (key,) in keys:
        session.query(f"ALTER TABLE {_quoted(target)} DROP FOREIGN KEY {quoted(str(key))}")
        left_out.append(f"foreign key {key}")
    return left_out


def definition(session: Session, table: TableName) -> str:
    """Return the CREATE TABLE statement of the table, without its schema."""
    return str(session.query(f"SHOW CREATE TABLE {_quoted(table)}")[0][1])


def create_table(session: Session, schema: str, statement: str) -> None:
    """Run a CREATE TABLE statement, as `definition` returns it, in the schema, with a lenient SQL mode."""
    session.query("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    session.query(f"USE {quoted(schema)}")
    session.query(statement)


def create_schema(session: Session, schema: str, like: SchemaContent) -> None:
    """Create a schema with the character set of another schema."""
    session.query(f"CREATE DATABASE {quoted(schema)} CHARACTER SET {like.charset} COLLATE {like.collation}")


def drop(session: Session, name: TableName, *, unlogged: bool) -> None:
    """Drop the table, or the schema if no table is named. `unlogged`: do not write to the binlog."""
    if unlogged:
        stop_logging(session)
    session.query(f"DROP DATABASE {quoted(name.schema)}" if name.table is None else f"DROP TABLE {_quoted(name)}")


def kind_of(session: Session, name: TableName) -> TableKind:
    """Return the properties that decide how the table can be copied to another server."""
    engine, options = session.query(
        "SELECT engine, create_options FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (name.schema, name.table),
    )[0]
    fulltext = session.query(
        "SELECT 1 FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s AND index_type ="
        " 'FULLTEXT' LIMIT 1",
        (name.schema, name.table),
    )
    has_file = (Path(str(session.value("SELECT @@datadir"))) / name.schema / f"{name.table}.ibd").is_file()
    return TableKind(name, str(engine), str(options or ""), bool(fulltext), has_file)


@contextlib.contextmanager
def exported(session: Session, table: TableName) -> Iterator[None]:
    """Keep the file of the table complete on disk, and locked, for the block (refman 8.4, "Importing InnoDB Tables").

    After an error in the block the lock lasts until the session ends.
    """
    session.query(f"FLUSH TABLES {_quoted(table)} FOR EXPORT")
    yield
    session.query("UNLOCK TABLES")


def discard_tablespace(session: Session, table: TableName) -> None:
    """Remove the file of the empty table, so that another file can replace it."""
    session.query(f"ALTER TABLE {_quoted(table)} DISCARD TABLESPACE")


def import_tablespace(session: Session, table: TableName) -> None:
    """Import the file that replaces the discarded one."""
    session.query(f"ALTER TABLE {_quoted(table)} IMPORT TABLESPACE")


def _quoted(name: TableName) -> str:
    return quoted(name.schema, name.table or "")
