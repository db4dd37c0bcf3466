"""Describes the content of a schema: all types of tables, views, routines, events and triggers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.sql_quoting import quoted

UNKNOWN = "unknown"
"""The engine of a table that the server cannot open. Whether the files of such a table survive a crash is unknown."""


class RowPlace(StrEnum):
    """The location of a table's rows: in files of the server, in its memory, outside the server, or nowhere."""

    FILES = "files"
    MEMORY = "memory"
    NOWHERE = "nowhere"
    OTHER_TABLES = "other tables"
    """The rows are in the tables that the definition of the table lists (UNION)."""
    ELSEWHERE = "elsewhere"
    """The rows are on another host, or in files that another program writes."""


_PLACES = {
    "memory": RowPlace.MEMORY,
    "blackhole": RowPlace.NOWHERE,
    "performance_schema": RowPlace.NOWHERE,
    "sequence": RowPlace.NOWHERE,
    "mrg_myisam": RowPlace.OTHER_TABLES,
    "federated": RowPlace.ELSEWHERE,
    "connect": RowPlace.ELSEWHERE,
    "spider": RowPlace.ELSEWHERE,
    "ndbcluster": RowPlace.ELSEWHERE,
    "s3": RowPlace.ELSEWHERE,
    "sphinx": RowPlace.ELSEWHERE,
    "columnstore": RowPlace.ELSEWHERE,
}
"""The row places by engine.

The engine `sequence` has virtual tables such as `seq_1_to_9`; CREATE SEQUENCE does not use it.
"""
_RECOVERS = ("innodb", "rocksdb")
_NO_FILES = ("memory", "blackhole", "performance_schema", "sequence", "federated")
"""The engines without files. CONNECT is not listed: its tables are mostly files, by default in the data directory."""


def row_place(engine: str) -> RowPlace:
    """Return where the engine stores its rows. An unknown engine is assumed to use files."""
    return _PLACES.get(engine.lower(), RowPlace.FILES)


def survives_a_crash(engine: str) -> bool:
    """Return whether the engine's tables survive a crash of the server at any moment.

    Tables survive if they have no files, or if a crash leaves their files intact.
    """
    return engine.lower() in (*_RECOVERS, *_NO_FILES)


def rows_not_restored(engines: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each engine whose rows a restore does not recover.

    The argument `engines` maps each engine to its number of tables.
    """
    words = {
        RowPlace.MEMORY: "only in the memory of the server, so a restore brings them back without rows",
        RowPlace.ELSEWHERE: "not in the files of the server, so a snapshot does not hold them",
    }
    sentences = []
    for engine, count in sorted(engines.items()):
        place = row_place(engine)
        if place in words:
            sentences.append(f"the rows of {count} {engine} table(s) are {words[place]}")
    return tuple(sentences)


class TableType(StrEnum):
    """The table types in `information_schema.tables` (MariaDB manual, "Information Schema TABLES Table").

    MySQL has only base tables and views. Temporary tables of a session are not in the catalogue.
    """

    BASE = "BASE TABLE"
    SYSTEM_VERSIONED = "SYSTEM VERSIONED"
    """A table that keeps old versions of its rows, which only FOR SYSTEM_TIME returns."""
    SEQUENCE = "SEQUENCE"
    """A generator of numbers (CREATE SEQUENCE), whose current value is one row."""
    VIEW = "VIEW"


@dataclass(frozen=True)
class CatalogueTable:
    """A table, sequence or view with its create options and its approximate size in bytes.

    The engine is None for a view, and for a table that cannot be opened (MariaDB lists a damaged table this way). The
    options come from the column `create_options` of `information_schema.tables`.
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
    """A column whose default value uses sequences. Each sequence is given as a schema and a name."""

    table: str
    column: str
    expression: str
    sequences: tuple[tuple[str, str], ...]

    def schemas(self) -> frozenset[str]:
        return frozenset(schema for schema, _ in self.sequences)

    def in_schema(self, old: str, new: str) -> str:
        """Return the default expression, with its sequences moved from schema `old` to schema `new`."""
        text = self.expression
        for schema, sequence in self.sequences:
            if schema == old:
                text = text.replace(quoted(old, sequence), quoted(new, sequence))
        return text


@dataclass(frozen=True)
class SchemaContent:
    """The objects of a schema, sorted by name.

    The field `versioned_by_transaction` contains the system-versioned tables whose history is based on transactions
    instead of times. Names in `routines` begin with their type ("procedure pay").
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
        """All tables that have rows: everything in the schema except views."""
        return tuple(table for table in self.tables if table.type is not TableType.VIEW)

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(table.name for table in self.tables if table.type is TableType.VIEW)

    @property
    def versioned_by_time(self) -> tuple[str, ...]:
        """The system-versioned tables whose row history a dump can contain."""
        return tuple(
            table.name
            for table in self.tables
            if table.is_versioned and table.name not in self.versioned_by_transaction
        )
