"""What a schema holds: tables of every type, views, routines, events, triggers. Pure.

`mysql/schema/schema_catalogue.py` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.engines import UNKNOWN, RowPlace, row_place
from zsnapdb.planning.sql_text import quoted


class TableType(StrEnum):
    """The types of tables in `information_schema.tables` (MariaDB manual, "Information Schema TABLES Table").

    MySQL has base tables and views only. Temporary tables of a session are not in the catalogue.
    """

    BASE = "BASE TABLE"
    SYSTEM_VERSIONED = "SYSTEM VERSIONED"
    """It keeps the old versions of its rows; only FOR SYSTEM_TIME shows them."""
    SEQUENCE = "SEQUENCE"
    """A generator of numbers (CREATE SEQUENCE). Its state is one row."""
    VIEW = "VIEW"


@dataclass(frozen=True)
class CatalogueTable:
    """A table, sequence or view: its engine, its create options, its approximate size in bytes.

    `engine` is None for a view, and for a table that cannot be opened (MariaDB lists a damaged table this way).
    `options` are those of `information_schema.tables`.
    """

    schema: str
    name: str
    type: TableType
    engine: str | None
    options: str
    size: int

    @property
    def quoted(self) -> str:
        """The quoted name for a statement."""
        return quoted(self.schema, self.name)

    @property
    def row_place(self) -> RowPlace:
        """Where its rows are. A view has none."""
        return RowPlace.NOWHERE if self.type is TableType.VIEW else row_place(self.engine or UNKNOWN)

    @property
    def is_sequence(self) -> bool:
        return self.type is TableType.SEQUENCE

    @property
    def is_versioned(self) -> bool:
        """Whether it keeps the old versions of its rows."""
        return self.type is TableType.SYSTEM_VERSIONED


@dataclass(frozen=True)
class ColumnName:
    """A column of a table."""

    table: str
    column: str


@dataclass(frozen=True)
class SequenceDefault:
    """A column whose default takes numbers from sequences: schema and name of each, and the expression."""

    table: str
    column: str
    expression: str
    sequences: tuple[tuple[str, str], ...]

    def schemas(self) -> frozenset[str]:
        """The schemas of the sequences."""
        return frozenset(schema for schema, _ in self.sequences)

    def in_schema(self, old: str, new: str) -> str:
        """Return the expression with the sequences of schema `old` in schema `new`."""
        text = self.expression
        for schema, sequence in self.sequences:
            if schema == old:
                text = text.replace(quoted(old, sequence), quoted(new, sequence))
        return text


@dataclass(frozen=True)
class SchemaContent:
    """Everything in a schema, sorted by name.

    `versioned_by_transaction` are the system-versioned tables whose history names transactions, not times. `routines`
    are named with their type ("procedure pay").
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
        """Everything that has rows: all but the views."""
        return tuple(table for table in self.tables if table.type is not TableType.VIEW)

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables if table.type is TableType.VIEW)

    @property
    def versioned_by_time(self) -> tuple[str, ...]:
        """The system-versioned tables whose history a dump can hold."""
        return tuple(
            table.name
            for table in self.tables
            if table.is_versioned and table.name not in self.versioned_by_transaction
        )
