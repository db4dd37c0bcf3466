"""The catalogue of a server, which lists the contents of its schemas. All other modules use this module to list tables.

It covers the table types of both families (refman 8.4, "The INFORMATION_SCHEMA TABLES Table"; MariaDB manual,
"Information Schema TABLES Table"). MariaDB's system-versioned tables and sequences are not base tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.schema_content import (
    UNKNOWN,
    CatalogueTable,
    ColumnName,
    SchemaContent,
    SequenceDefault,
    TableType,
)
from zsnapdb.planning.server_family import family

HAS_ROWS = "table_type NOT IN ('VIEW', 'SYSTEM VIEW', 'TEMPORARY', 'TEMPORARY SEQUENCE')"
"""Condition on `information_schema.tables` that selects tables with their own rows that outlive a session.

An unknown type from a later server is treated as a table.
"""
_EVENTS = "SELECT event_name FROM information_schema.events WHERE event_schema = %s"
_TRIGGERS = "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = %s"
_WITHOUT_FILES = ("information_schema", "performance_schema")
_COLUMNS = (
    "table_schema, table_name, table_type, engine, COALESCE(create_options, ''), COALESCE(data_length, 0) +"
    " COALESCE(index_length, 0)"
)
STORED_TABLES = (
    f"SELECT {_COLUMNS} FROM information_schema.tables WHERE {HAS_ROWS} AND table_schema NOT IN {_WITHOUT_FILES}"
    " ORDER BY table_schema, table_name"
)
"""Query for all tables with their own rows. `table_of` converts a row of the result."""
_ENGINE_LIBRARY = re.compile(r"ha_[a-z0-9_]{1,60}(?:\.so)?")
"""Names of storage engine libraries of both families. Library names come from untrusted data, so no other names are
accepted.
"""
_SEQUENCE_VALUE = re.compile(r"\b(?:next|last)val\(`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`\)", re.IGNORECASE)


def stored_tables(session: Session) -> list[CatalogueTable]:
    """Return every table that stores rows, sorted. Tables in the system schemas `mysql` and `sys` are included.

    The result contains base tables, system-versioned tables and sequences of all engines.
    """
    return [table_of(row) for row in session.query(STORED_TABLES)]


def engine_counts(session: Session, without_schemas: Sequence[str]) -> dict[str, int]:
    """Return how many tables with stored rows each engine has, except in the schemas `without_schemas`.

    A table that cannot be opened is counted for the engine `unknown`.
    """
    marks = ", ".join(["%s"] * len(without_schemas))
    rows = session.query(
        f"SELECT COALESCE(engine, '{UNKNOWN}'), COUNT(*) FROM information_schema.tables WHERE {HAS_ROWS} AND"
        f" table_schema NOT IN ({marks}) GROUP BY COALESCE(engine, '{UNKNOWN}')",
        without_schemas,
    )
    return {str(name): int(count) for name, count in rows}


_COMPRESSED = """page_compressed`?=['"]?(1|on|yes)|compression=['"]?(zlib|lz4)"""
_ENCRYPTED = """encryption=['"]?y|encrypted`?=['"]?yes"""


def count_page_compressed(session: Session, flavour: Flavour) -> int:
    """Return the number of tables with compressed pages.

    MariaDB opens each table for its create options, which took 10 s for 20,000 tables. Its dictionary has a flag.
    """
    flag = family(flavour).page_compression_flag
    if flag is None:
        return _count_options(session, _COMPRESSED)
    table = "SUBSTRING_INDEX(LOWER(name), '#p#', 1)"
    sql = f"SELECT COUNT(DISTINCT {table}) FROM information_schema.innodb_sys_tables WHERE flag & {flag}"
    return int(session.value(sql))


def count_encrypted(session: Session) -> int:
    """Return the number of tables that are encrypted according to their create options. MariaDB opens each table."""
    return _count_options(session, _ENCRYPTED)


def _count_options(session: Session, pattern: str) -> int:
    """Return the number of tables whose create options match a regular expression.

    Sources: refman 8.4, "InnoDB Page Compression" and "InnoDB Data-at-Rest Encryption"; MariaDB manual, "CREATE TABLE".
    """
    ((count,),) = session.query(
        f"SELECT COUNT(*) FROM information_schema.tables WHERE {HAS_ROWS} AND table_schema NOT IN {_WITHOUT_FILES} AND"
        " create_options <> '' AND LOWER(create_options) RLIKE %s",
        (pattern,),
    )
    return int(count)


def engine_libraries(session: Session) -> tuple[str, ...]:
    """Return the libraries of storage engines that were installed by INSTALL PLUGIN or INSTALL SONAME, sorted.

    A server that starts without accounts does not load these libraries (refman 8.4, "skip_grant_tables").
    """
    names = {str(row[0]) for row in session.query("SELECT dl FROM mysql.plugin")}
    return tuple(sorted(name for name in names if _ENGINE_LIBRARY.fullmatch(name)))


def schemas(session: Session) -> list[str]:
    """Return the names of the schemas, sorted."""
    rows = session.query("SELECT schema_name FROM information_schema.schemata ORDER BY schema_name")
    return [str(row[0]) for row in rows]


def has_schema(session: Session, schema: str) -> bool:
    """Return whether a schema with this name exists."""
    return bool(session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (schema,)))


def has_column(session: Session, table: str, column: str) -> bool:
    """Return whether a table of information_schema has this column. Both names must be in upper case."""
    sql = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = 'information_schema' AND table_name = %s AND"
        " column_name = %s"
    )
    return bool(session.query(sql, (table, column)))


def find_table(session: Session, schema: str, name: str) -> CatalogueTable | None:
    """Return the table, sequence or view with this name; None if it does not exist."""
    return next(iter(_tables(session, schema, " AND table_name = %s", (name,))), None)


def names(session: Session, schema: str, limit: int) -> list[str]:
    """Return the sorted names of at most `limit` objects in total: tables, sequences and views of the schema."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name LIMIT %s"
    return [str(row[0]) for row in session.query(sql, (schema, limit))]


def content(session: Session, schema: str) -> SchemaContent:
    """Return the contents of an existing schema."""
    charset, collation = session.query(
        "SELECT default_character_set_name, default_collation_name FROM information_schema.schemata WHERE"
        " schema_name = %s",
        (schema,),
    )[0]
    tables = _tables(session, schema)
    events = _names(session, _EVENTS, schema)
    has_sequences = any(table.is_sequence for table in tables)
    return SchemaContent(
        schema,
        str(charset),
        str(collation),
        tables,
        versioned_by_transaction(session, schema) if any(table.is_versioned for table in tables) else frozenset(),
        sequence_defaults(session, schema) if has_sequences else (),
        tuple(f"{kind.lower()} {name}" for kind, name in _routines(session, schema)),
        events,
        _hidden_events(session, schema, events),
        _names(session, _TRIGGERS, schema),
    )


def triggers_of(session: Session, schema: str, table: str) -> tuple[str, ...]:
    """Return the names of a table's triggers, sorted."""
    sql = (
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table"
        " = %s"
    )
    return _names(session, sql, schema, table)


def versioned_by_transaction(session: Session, schema: str) -> frozenset[str]:
    """Return the tables whose history is based on transaction ids (MariaDB manual, "System-Versioned Tables").

    The row start of such a table is a transaction id, which only this server can interpret.
    """
    sql = (
        "SELECT table_name FROM information_schema.columns WHERE table_schema = %s AND generation_expression = 'ROW"
        " START' AND data_type = 'bigint'"
    )
    return frozenset(_names(session, sql, schema))


def single_columns(session: Session, schema: str) -> tuple[ColumnName, ...]:
    """Return the schema's stored FLOAT columns that the server prints with only 6 digits, sorted.

    FLOAT(M, D) columns are omitted, because they store only D decimals, and the server prints all of them.
    """
    rows = session.query(
        "SELECT c.table_name, c.column_name FROM information_schema.columns AS c JOIN information_schema.tables AS t ON"
        " t.table_schema = c.table_schema AND t.table_name = c.table_name WHERE c.table_schema = %s AND c.data_type ="
        " 'float' AND c.column_type NOT LIKE 'float(%%' AND COALESCE(c.generation_expression, '') = '' AND"
        f" {HAS_ROWS} ORDER BY c.table_name, c.ordinal_position",
        (schema,),
    )
    return tuple(ColumnName(str(table), str(column)) for table, column in rows)


def sequence_defaults(session: Session, schema: str) -> tuple[SequenceDefault, ...]:
    """Return the columns of the schema that have a default with a sequence."""
    rows = session.query(
        "SELECT table_name, column_name, column_default FROM information_schema.columns WHERE table_schema = %s AND"
        " column_default LIKE '%%val(`%%' ORDER BY table_name, ordinal_position",
        (schema,),
    )
    defaults = (
        SequenceDefault(str(table), str(column), str(text), _sequences_in(str(text))) for table, column, text in rows
    )
    return tuple(default for default in defaults if default.sequences)


def _sequences_in(expression: str) -> tuple[tuple[str, str], ...]:
    names = (match.groups() for match in _SEQUENCE_VALUE.finditer(expression))
    return tuple((schema.replace("``", "`"), name.replace("``", "`")) for schema, name in names)


def _tables(session: Session, schema: str, more: str = "", values: Sequence[str] = ()) -> tuple[CatalogueTable, ...]:
    rows = session.query(
        f"SELECT {_COLUMNS} FROM information_schema.tables WHERE table_schema = %s AND table_type NOT LIKE"
        f" 'TEMPORARY%%'{more} ORDER BY table_name",
        (schema, *values),
    )
    return tuple(table_of(row) for row in rows)


def table_of(row: Row) -> CatalogueTable:
    """Return the table in a row of the result of STORED_TABLES."""
    schema, name, kind, engine, options, size = row
    return CatalogueTable(
        str(schema), str(name), _type(str(kind)), None if engine is None else str(engine), str(options), int(size)
    )


def _type(text: str) -> TableType:
    if text == "SYSTEM VIEW":
        return TableType.VIEW
    return TableType(text) if text in set(TableType) else TableType.BASE


def _routines(session: Session, schema: str) -> Iterable[tuple[str, str]]:
    rows = session.query(
        "SELECT routine_type, routine_name FROM information_schema.routines WHERE routine_schema = %s ORDER BY"
        " routine_name, routine_type",
        (schema,),
    )
    return ((str(kind), str(name)) for kind, name in rows)


def stored_programs(session: Session, schema: str) -> list[tuple[str, str]]:
    """Return the kind (as in SHOW CREATE) and the name of each trigger, routine and event of the schema."""
    events = _names(session, _EVENTS, schema)
    triggers = _names(session, _TRIGGERS, schema)
    return [
        *(("TRIGGER", name) for name in triggers),
        *_routines(session, schema),
        *(("EVENT", name) for name in events),
    ]


def _hidden_events(session: Session, schema: str, shown: tuple[str, ...]) -> tuple[str, ...]:
    """Return the events that the server has but does not show.

    A MariaDB server without accounts (skip_grant_tables) loads no events. On such a server, information_schema and the
    dump program list no events and report no error, although the events are in the table mysql.event. MySQL 8.0 and
    later have no table mysql.event.
    """
    table = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'mysql' AND table_name = 'event'"
    if not session.query(table):
        return ()
    stored = _names(session, "SELECT name FROM mysql.event WHERE db = %s", schema)
    return tuple(name for name in stored if name not in shown)


def _names(session: Session, sql: str, *values: str) -> tuple[str, ...]:
    return tuple(sorted(str(row[0]) for row in session.query(sql, values)))
