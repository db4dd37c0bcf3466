"""The content of a schema: tables of every type, views, routines, events, triggers. Pure.

`mysql/schema/schema_catalogue.py` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.sql_quoting import quoted
from zsnapdb.planning.storage_engines import UNKNOWN, RowPlace, row_place


class TableType(StrEnum):
    """The types of tables in `information_schema.tables` (MariaDB manual, "Information Schema TABLES Table").

    MySQL has base tables and views only. Temporary tables of a session are not in the catalogue.
    """

    BASE = "BASE TABLE"
    SYSTEM_VERSIONED = "SYSTEM VERSIONED"
    """A table that keeps old versions of its rows; only FOR SYSTEM_TIME shows them."""
    SEQUENCE = "SEQUENCE"
    """A generator of numbers (CREATE SEQUENCE). Its state is one row."""
    VIEW = "VIEW"


@dataclass(frozen=True)
class CatalogueTable:
    """A table, sequence or view with its create options and its approximate size in bytes.

    `engine` is None for a view, and for a table that cannot be opened (MariaDB lists a damaged table this way).
    `options` is the column `create_options` of `information_schema.tables`.
    """

    schema: str
    name: str
    type: TableType
    engine: str | None
    options: str
    size: int

    @property
    def quoted(self) -> str:
        return quoted(self.schema, self.name)

    @property
    def row_place(self) -> RowPlace:
        return RowPlace.NOWHERE if self.type is TableType.VIEW else row_place(self.engine or UNKNOWN)

    @property
    def is_sequence(self) -> bool:
        return self.type is TableType.SEQUENCE

    @property
    def is_versioned(self) -> bool:
        return self.type is TableType.SYSTEM_VERSIONED


@dataclass(frozen=True)
class ColumnName:
    """A column of a table."""

    table: str
    column: str


@dataclass(frozen=True)
class SequenceDefault:
    """A column whose default takes numbers from sequences. Each sequence is a pair of schema and name."""

    table: str
    column: str
    expression: str
    sequences: tuple[tuple[str, str], ...]

    def schemas(self) -> frozenset[str]:
        return frozenset(schema for schema, _ in self.sequences)

    def in_schema(self, old: str, new: str) -> str:
        """Return the expression with the sequences of schema `old` renamed to schema `new`."""
        text = self.expression
        for schema, sequence in self.sequences:
            if schema == old:
                text = text.replace(quoted(old, sequence), quoted(new, sequence))
        return text


@dataclass(frozen=True)
class SchemaContent:
    """The objects of a schema, sorted by name.

    `versioned_by_transaction` are the system-versioned tables whose history refers to transactions, not times.
    `routines` have their type in the name ("procedure pay").
    """

    name: str
    charset: str
    collation: str
    tables: tuple[CatalogueTable, ...]
    versioned_by_transaction: frozenset[str] = frozenset()
    sequence_defaults: tuple[SequenceDefault, ...] = ()
    routines: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    hidden_events: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()

    @property
    def stored(self) -> tuple[CatalogueTable, ...]:
        """All tables with rows: everything except views."""
        return tuple(table for table in self.tables if table.type is not TableType.VIEW)

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables if table.type is TableType.VIEW)

    @property
    def versioned_by_time(self) -> tuple[str, ...]:
        """The system-versioned tables whose history a dump can contain."""
        return tuple(
            table.name
            for table in self.tables
            if table.is_versioned and table.name not in self.versioned_by_transaction
        )
