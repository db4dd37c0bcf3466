"""Finds the defaults with which a replay exactly recreates tables that were created without ENGINE or ROW_FORMAT.

Pure. No event contains the default_storage_engine of a session or innodb_default_row_format (status variables of query
events: statement_events.h of MySQL, log_event.h of MariaDB). Two facts show the engine: whether the transactions on the
table are transactional, and the engine that the server reported when the archiver read the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster", "ndb"})
_DEFAULT_FORMATS = ("dynamic", "compact", "redundant")
"""The values that innodb_default_row_format can have."""
_NAMED = 5
MOST_MADE = 4096
"""The maximum number of tables that the description of a binlog lists with further facts."""


@dataclass(frozen=True)
class CreatedTable:
    """A table or sequence that a statement without ENGINE created, with its transaction and its statement.

    - `start`, `end`: the bytes of the transaction in its file
    - `offset`: the start of the event with the statement
    - `is_transactional`: whether the engine is transactional; None if the binlogs do not show this
    - `lacks_options`: the server logged the statement under a sql_mode that omits all table options
    - `is_touched`: a later statement renames or drops a table with this name, or may have changed its options
    - `is_dropped`: a later statement drops the table
    - `is_altered`: a later statement alters the table and keeps its engine
    - `is_converted`: a later statement may have changed its character set
    - `names_engine`: the statement has ENGINE, but lacks ROW_FORMAT
    - `names_format`: the statement has ROW_FORMAT
    """

    schema: str
    table: str
    start: int
    offset: int
    end: int
    is_transactional: bool | None = None
    lacks_options: bool = False
    is_touched: bool = False
    is_dropped: bool = False
    is_altered: bool = False
    is_converted: bool = False
    names_engine: bool = False
    names_format: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class RecordedTable:
    """The engine, collation and row format that the server reported after the archiver had read the statement."""

    engine: str
    collation: str | None = None
    row_format: str | None = None


@dataclass(frozen=True)
class EngineStop:
    """A change of the default engine before the transaction at `offset` of the replay's file `number` (from 1).

    The default row format of InnoDB is set to `row_format`. The collation of `database` is set to `collation`, but only
    for this transaction.
    """

    number: int
    offset: int
    end: int
    engine: str
    row_format: str
    database: str | None = None
    collation: str | None = None


@dataclass(frozen=True)
class EnginePlan:
    """The changes of the default engine in a replay.

    - `unknown`: the tables that get the default engine of the backup, because no fact shows their engine
    - `contradicted`: the tables with an unknown engine that certainly differs from the default engine of the backup
    - `bare`: the tables with options that no statement and no record contains
    """

    stops: tuple[EngineStop, ...] = ()
    unknown: tuple[CreatedTable, ...] = ()
    contradicted: tuple[CreatedTable, ...] = ()
    bare: tuple[CreatedTable, ...] = ()


def fits(engine: str, is_transactional: bool | None) -> bool:
    """Return whether an engine is consistent with the transactions on the table.

    If it is unknown whether they are transactional (None), every engine fits.
    """
    return is_transactional is None or (engine.casefold() in _TRANSACTIONAL) is is_transactional


@dataclass(frozen=True)
class Defaults:
    """The default engine of tables created without ENGINE, and the row format of InnoDB tables without ROW_FORMAT."""

    engine: str
    row_format: str = "dynamic"


def plan_engines(
    made: Iterable[tuple[int, CreatedTable]], records: Mapping[tuple[int, int], RecordedTable], start: Defaults
) -> EnginePlan:
    """Return the plan for the created tables. `made` contains the tables with their file numbers, in binlog order.

    The keys of `records` are the file number and the offset of the statement. The replay starts with the defaults
    `start`.
    """
    stops: list[EngineStop] = []
    unknown: list[CreatedTable] = []
    contradicted: list[CreatedTable] = []
    bare: list[CreatedTable] = []
    current = start
    for number, table in made:
        record = records.get((number, table.offset))
        wanted = _needed_defaults(table, record, current, start)
        if wanted is None:
            contradicted += [] if table.is_dropped else [table]
            continue
        is_known = record is not None and fits(record.engine, table.is_transactional)
        if not (is_known or table.names_engine or table.is_transactional or table.is_dropped):
            unknown.append(table)
        collation = record.collation if record is not None and table.lacks_options else None
        if table.lacks_options and collation is None and not table.is_dropped:
            bare.append(table)
        if wanted != current or collation is not None:
            place = table.schema if collation is not None else None
            stops.append(EngineStop(number, table.start, table.end, wanted.engine, wanted.row_format, place, collation))
            current = wanted
    return EnginePlan(tuple(stops), tuple(unknown), tuple(contradicted), tuple(bare))


def _needed_defaults(
    table: CreatedTable, record: RecordedTable | None, current: Defaults, start: Defaults
) -> Defaults | None:
    """Return the defaults that recreate the original table; None if they are unknown.

    If a default has no effect on this table, the result contains its current value.
    """
    known = record if record is not None and fits(record.engine, table.is_transactional) else None
    engine: str | None = current.engine
    if not table.names_engine:
        engine = known.engine if known is not None else _engine_without_record(table, start.engine)
    if engine is None:
        return None
    row_format = (known.row_format or "").casefold() if known is not None and not table.names_format else ""
    if known is None or known.engine.casefold() != "innodb" or row_format not in _DEFAULT_FORMATS:
        row_format = current.row_format
    return Defaults(current.engine if engine.casefold() == current.engine.casefold() else engine, row_format)


def _engine_without_record(table: CreatedTable, default: str) -> str | None:
    if fits(default, table.is_transactional):
        return default
    return "InnoDB" if table.is_transactional else None


def contradiction(planned: EnginePlan, start: Defaults, by: str) -> str | None:
    """Return why a replay that starts with `start` cannot recreate all tables; None if it can.

    If a table gets a different character set, the applier compares the column types only by their byte size, so the
    characters in rows could change. If `by` is "client", this function ignores such tables: no replay restores their
    character set, and the caller warns.
    """
    if planned.bare and by != "client":
        return (
            f"the source logged {listing(planned.bare)} without the options of the table (sql_mode ANSI), and no"
            " record of the archive says the character set"
        )
    if not planned.contradicted:
        return None
    return (
        f"the source made {listing(planned.contradicted)} in another storage engine than {start.engine}, its default"
        " at the backup: their statements name none, and no record of the archive says which"
    )


OTHER_POINT = "restore a backup that was made after these tables, or a point before them"
"""The hint for tables whose engine or character set contradicts the replay's defaults."""


def listing(tables: Iterable[CreatedTable]) -> str:
    """Return the names of the first five tables, and the number of the remaining tables."""
    names = list(dict.fromkeys(str(table) for table in tables))
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
