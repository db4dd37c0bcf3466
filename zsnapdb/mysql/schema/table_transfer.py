"""Statements that move a table or a schema from one server to another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.mysql.schema import schema_catalogue
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import stop_logging
from zsnapdb.planning.schema_content import ColumnName, SchemaContent
from zsnapdb.planning.sql_quoting import TableName, quoted
from zsnapdb.planning.trial.rescue import TableKind, foreign_key_note


def move_away(session: Session, schema: str, table: str, target: TableName, name: TableName) -> list[str]:
    """Move a table or sequence to `target`, in a new schema. Return notes about the omitted parts.

    Triggers, foreign keys, and defaults that use a sequence are omitted, because they would link the table to other
    tables. On the live server, the table gets the name `name`. Use this only on an ephemeral server.
    """
    left_out = []
    session.query("SET SESSION foreign_key_checks = 0")
    defaults = [each for each in schema_catalogue.sequence_defaults(session, schema) if each.table == table]
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
    text = definition(session, target) if keys else ""
    for (key,) in keys:
        session.query(f"ALTER TABLE {_quoted(target)} DROP FOREIGN KEY {quoted(str(key))}")
        left_out.append(foreign_key_note(text, str(key), name))
    for default in defaults:
        _allow_alter(session, target.schema, target.table or "")
        session.query(f"ALTER TABLE {_quoted(target)} ALTER COLUMN {quoted(default.column)} DROP DEFAULT")
        left_out.append(f"default of {default.column}: {default.expression}")
    return left_out


def take_numbers_from(session: Session, content: SchemaContent, new_schema: str) -> None:
    """Make the defaults of the schema's columns refer to its sequences by their names in `new_schema`.

    A default contains the sequence's schema (MariaDB manual, "SEQUENCE Overview"), so a dump would contain the old
    schema name. Use this only on an ephemeral server.
    """
    defaults = [default for default in content.sequence_defaults if default.schemas() & {content.name} - {new_schema}]
    if defaults:
        session.query(f"CREATE DATABASE IF NOT EXISTS {quoted(new_schema)}")
    for default in defaults:
        for schema, sequence in default.sequences:
            if schema == content.name:
                session.query(f"CREATE SEQUENCE IF NOT EXISTS {quoted(new_schema, sequence)}")
        _allow_alter(session, content.name, default.table)
        session.query(
            f"ALTER TABLE {quoted(content.name, default.table)} ALTER COLUMN {quoted(default.column)} SET DEFAULT"
            f" ({default.in_schema(content.name, new_schema)})"
        )


def widen_float_columns(session: Session, table: TableName) -> tuple[ColumnName, ...]:
    """Change the table's FLOAT columns to DOUBLE, so that a dump has all digits. Return columns that were not changed.

    A FLOAT column that is loaded from the digits of the DOUBLE gets the same value. FLOAT columns of a system-versioned
    table are not changed. Use this only on an ephemeral server.
    """
    singles = tuple(
        each for each in schema_catalogue.single_columns(session, table.schema) if each.table == table.table
    )
    found = schema_catalogue.find_table(session, table.schema, table.table or "")
    if not singles or found is None or found.is_versioned:
        return singles
    changes = ", ".join(f"MODIFY {quoted(single.column)} DOUBLE" for single in singles)
    session.query("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    session.query(f"ALTER TABLE {_quoted(table)} {changes}")
    return ()


def _allow_alter(session: Session, schema: str, name: str) -> None:
    """Allow the session to alter a system-versioned table (MariaDB manual, "system_versioning_alter_history")."""
    table = schema_catalogue.find_table(session, schema, name)
    if table is not None and table.is_versioned:
        session.query("SET SESSION system_versioning_alter_history = 'KEEP'")


def definition(session: Session, table: TableName) -> str:
    """Return the CREATE statement of the table or sequence, without its schema."""
    return str(session.query(f"SHOW CREATE {_word(session, table)} {_quoted(table)}")[0][1])


def _word(session: Session, name: TableName) -> str:
    table = schema_catalogue.find_table(session, name.schema, name.table or "")
    return "SEQUENCE" if table is not None and table.is_sequence else "TABLE"


def sequence_state(session: Session, name: TableName) -> tuple[object, ...]:
    """Return the state that a copy of a sequence needs: the next value that no server has cached, and the bounds.

    The number of completed cycles is omitted, because a dump does not contain it.
    """
    return session.query(
        "SELECT next_not_cached_value, minimum_value, maximum_value, start_value, increment, cache_size, cycle_option"
        f" FROM {_quoted(name)}"
    )[0]


def set_next_value(session: Session, name: TableName, value: object) -> None:
    """Set the next value of the sequence (MariaDB manual, "SETVAL")."""
    session.query(f"SELECT SETVAL({_quoted(name)}, %s, 0)", (value,))


def create_table(session: Session, schema: str, statement: str) -> None:
    """Run a CREATE statement from `definition` in the schema, with a lenient SQL mode."""
    session.query("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    session.query(f"USE {quoted(schema)}")
    session.query(statement)


def create_schema(session: Session, schema: str, like: SchemaContent) -> None:
    """Create a schema with the character set of another schema."""
    session.query(f"CREATE DATABASE {quoted(schema)} CHARACTER SET {like.charset} COLLATE {like.collation}")


def drop(session: Session, name: TableName, *, unlogged: bool) -> None:
    """Drop the table, or the whole schema if `name` has no table.

    If `unlogged` is set, the statement is not written to the binlog.
    """
    if unlogged:
        stop_logging(session)
    if name.table is None:
        session.query(f"DROP DATABASE {quoted(name.schema)}")
    else:
        session.query(f"DROP {_word(session, name)} {_quoted(name)}")


def kind_of(session: Session, name: TableName) -> TableKind:
    """Return the properties of a table that determine how it can be copied to another server."""
    table = schema_catalogue.find_table(session, name.schema, name.table or "")
    assert table is not None, name
    fulltext = session.query(
        "SELECT 1 FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s AND index_type ="
        " 'FULLTEXT' LIMIT 1",
        (name.schema, name.table),
    )
    has_file = (Path(str(session.value("SELECT @@datadir"))) / name.schema / f"{name.table}.ibd").is_file()
    by_transaction = name.table in schema_catalogue.versioned_by_transaction(session, name.schema)
    return TableKind(name, str(table.engine), table.options, bool(fulltext), has_file, by_transaction)


@contextlib.contextmanager
def exported(session: Session, table: TableName) -> Iterator[None]:
    """Lock the table during a `with` block, with a complete file on disk (refman 8.4, "Importing InnoDB Tables").

    After an error in the block, the lock lasts until the session ends.
    """
    session.query(f"FLUSH TABLES {_quoted(table)} FOR EXPORT")
    yield
    session.query("UNLOCK TABLES")


def discard_tablespace(session: Session, table: TableName) -> None:
    """Remove the file of an empty table, so that a different file can replace it."""
    session.query(f"ALTER TABLE {_quoted(table)} DISCARD TABLESPACE")


def import_tablespace(session: Session, table: TableName) -> None:
    """Import the file that replaces the table's discarded file."""
    session.query(f"ALTER TABLE {_quoted(table)} IMPORT TABLESPACE")


def _quoted(name: TableName) -> str:
    return quoted(name.schema, name.table or "")
