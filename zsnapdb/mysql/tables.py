"""Schemas and tables: names, content, columns, checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.clone.diff import Column
from zsnapdb.planning.quoting import quoted


@dataclass(frozen=True)
class BaseTable:
    """A base table: its name, its engine, its approximate size in bytes.

    `engine` is None for a table that cannot be opened (MariaDB lists a damaged table this way).
    """

    schema: str
    name: str
    engine: str | None
    size: int

    @property
    def quoted(self) -> str:
        """The quoted name for a statement."""
        return quoted(self.schema, self.name)


@dataclass(frozen=True)
class SchemaContent:
    """The content of a schema: base tables, views and similar objects, character set and collation."""

    tables: tuple[str, ...]
    others: tuple[str, ...]
    charset: str
    collation: str


def base_tables(session: Session) -> list[BaseTable]:
    """Return the base tables that have files, including those of the system schemas."""
    rows = session.query(
        "SELECT table_schema, table_name, engine, COALESCE(data_length, 0) + COALESCE(index_length, 0) FROM"
        " information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('information_schema',"
        " 'performance_schema') ORDER BY table_schema, table_name"
    )
    return [
        BaseTable(str(schema), str(name), None if engine is None else str(engine), int(size))
        for schema, name, engine, size in rows
    ]


def check(session: Session, table: str, *, for_upgrade: bool = False) -> list[Row]:
    """Run CHECK TABLE for a quoted name and return the rows of the result: table, operation, kind, text."""
    return session.query(f"CHECK TABLE {table} FOR UPGRADE" if for_upgrade else f"CHECK TABLE {table}")


def schemas(session: Session) -> list[str]:
    """Return the names of the schemas, sorted."""
    rows = session.query("SELECT schema_name FROM information_schema.schemata ORDER BY schema_name")
    return [str(row[0]) for row in rows]


def has_schema(session: Session, schema: str) -> bool:
    """Whether a schema of that name exists."""
    return bool(session.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (schema,)))


def has_table(session: Session, schema: str, table: str) -> bool:
    """Whether a table or view of that name exists."""
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    return bool(session.query(sql, (schema, table)))


def has_base_table(session: Session, schema: str, table: str) -> bool:
    """Whether a base table (not a view) of that name exists."""
    sql = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s AND table_type = 'BASE"
        " TABLE'"
    )
    return bool(session.query(sql, (schema, table)))


def names(session: Session, schema: str, limit: int) -> list[str]:
    """Return the names of the schema's first `limit` tables and views, sorted."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name LIMIT %s"
    return [str(row[0]) for row in session.query(sql, (schema, limit))]


def content(session: Session, schema: str) -> SchemaContent:
    """Return the content of the schema, which must exist."""
    rows = session.query(
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name",
        (schema,),
    )
    charset, collation = session.query(
        "SELECT default_character_set_name, default_collation_name FROM information_schema.schemata WHERE"
        " schema_name = %s",
        (schema,),
    )[0]
    return SchemaContent(
        tuple(str(table) for table, kind in rows if kind == "BASE TABLE"),
        tuple(str(table) for table, kind in rows if kind != "BASE TABLE"),
        str(charset),
        str(collation),
    )


def count(session: Session, schema: str, table: str) -> int:
    """Return how many rows the table has."""
    return int(session.value(f"SELECT COUNT(*) FROM {quoted(schema, table)}"))


def columns(session: Session, schema: str, table: str) -> list[Column]:
    """Return the columns of the table in order, with their places in the primary key.

    The list is empty if the table does not exist.
    """
    pads = _padding_collations(session)
    keys = {
        str(column): int(part)
        for column, part in session.query(
            "SELECT column_name, seq_in_index FROM information_schema.statistics WHERE table_schema = %s AND table_name"
            " = %s AND index_name = 'PRIMARY'",
            (schema, table),
        )
    }
    rows = session.query(
        "SELECT column_name, data_type, character_maximum_length, collation_name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, table),
    )
    return [
        Column(
            str(column),
            str(kind).lower(),
            None if length is None else int(length),
            keys.get(str(column), 0),
            collation is None or pads(str(collation)),
        )
        for column, kind, length, collation in rows
    ]


def _padding_collations(session: Session) -> Callable[[str], bool]:
    """Return a function that says whether a collation ignores trailing spaces.

    MySQL has a column for this; in MariaDB the collations that do not ignore spaces have …_nopad_… in their name.
    """
    has_column = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = 'information_schema' AND table_name ="
        " 'COLLATIONS' AND column_name = 'PAD_ATTRIBUTE'"
    )
    if not session.query(has_column):
        return lambda name: "_nopad_" not in name
    pads = {
        str(name): str(pad)
        for name, pad in session.query("SELECT collation_name, pad_attribute FROM information_schema.collations")
    }
    return lambda name: pads.get(name, "PAD SPACE") == "PAD SPACE"
