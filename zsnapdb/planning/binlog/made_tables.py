"""The tables that statements without ENGINE or ROW_FORMAT made, and how a replay gives them those that they had. Pure.

No event says the default_storage_engine of a session or innodb_default_row_format (status variables of query events:
statement_events.h of MySQL, log_event.h of MariaDB). Two things say the engine: whether transactions on the table are
those of a transactional engine, and what the server said of the table when the archiver saw the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster", "ndb"})
_DEFAULT_FORMATS = ("dynamic", "compact", "redundant")
"""The values of innodb_default_row_format."""
_NAMED = 5
MOST_MADE = 4096
"""How many tables the description of a binlog says more of."""


@dataclass(frozen=True)
class MadeTable:
    """A table or sequence that a statement without ENGINE made: its transaction, its statement, and what says more.

    `start` and `end` are the bytes of the transaction in its file, `offset` is where the event of the statement begins.
    `is_transactional` None: nothing in the binlogs says it. `lacks_options`: the server wrote the statement under a
    sql_mode in which it leaves out all options of the table. `is_touched`: a later statement may have given a table of
    this name other options, or renames or drops it; `is_dropped`: it drops the table. `is_altered`: a later one alters
    the table and leaves it its engine; `is_converted`: it may have another character set since. `names_engine`: the
    statement has ENGINE, and lacks ROW_FORMAT alone; `names_format`: it has ROW_FORMAT.
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
    """What the server said of a table when the archiver had read its statement: engine, and what else it has."""

    engine: str
    collation: str | None = None
    row_format: str | None = None


@dataclass(frozen=True)
class EngineStop:
    """Before the transaction at `offset` of the replay's file `number` (from 1), the default engine becomes `engine`.

    The default row format of InnoDB becomes `row_format`.
    `database` and `collation`: this transaction alone makes its table where the database has this collation.
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
    """Where a replay changes the default engine; `unknown` tables get that of the backup, as nothing says theirs.

    `contradicted`: tables that had another engine than that of the backup, and nothing says which. `bare`: tables
    whose options are in no statement and no record.
    """

    stops: tuple[EngineStop, ...] = ()
    unknown: tuple[MadeTable, ...] = ()
    contradicted: tuple[MadeTable, ...] = ()
    bare: tuple[MadeTable, ...] = ()


def fits(engine: str, is_transactional: bool | None) -> bool:
    """Whether a table of this engine has such transactions. None says nothing."""
    return is_transactional is None or (engine.casefold() in _TRANSACTIONAL) is is_transactional


@dataclass(frozen=True)
class Defaults:
    """The engine of tables whose statement names none, and the row format of those in InnoDB."""

    engine: str
    row_format: str = "dynamic"


def plan_engines(
    made: Iterable[tuple[int, MadeTable]], records: Mapping[tuple[int, int], RecordedTable], start: Defaults
) -> EnginePlan:
    """Return the engines for the tables, each with the number of its file, in the order of the binlogs.

    `records` are by the number of the file and the offset of the statement. The replay begins with `start`.
    """
    stops: list[EngineStop] = []
    unknown: list[MadeTable] = []
    contradicted: list[MadeTable] = []
    bare: list[MadeTable] = []
    current = start
    for number, table in made:
        record = records.get((number, table.offset))
        wanted = _wanted(table, record, current, start)
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


def _wanted(table: MadeTable, record: RecordedTable | None, current: Defaults, start: Defaults) -> Defaults | None:
    """Return the defaults with which the table becomes what it was; None if they are not known but were others.

    A default that the table does not depend on stays as it is.
    """
    known = record if record is not None and fits(record.engine, table.is_transactional) else None
    engine: str | None = current.engine
    if not table.names_engine:
        engine = known.engine if known is not None else _engine_without_record(table, start.engine)
    if engine is None:
        return None
    row_format = (known.row_format or "").casefold() if known is not None and not table.names_format else ""
    is_same = engine.casefold() == current.engine.casefold()
    return Defaults(
        current.engine if is_same else engine,
        row_format if known is not None and _has_default_format(known, row_format) else current.row_format,
    )


def _engine_without_record(table: MadeTable, default: str) -> str | None:
    if fits(default, table.is_transactional):
        return default
    return "InnoDB" if table.is_transactional else None


def _has_default_format(known: RecordedTable, row_format: str) -> bool:
    return known.engine.casefold() == "innodb" and row_format in _DEFAULT_FORMATS


def contradiction(planned: EnginePlan, start: Defaults, by: str) -> str | None:
    """Return why a replay that begins with `start` cannot make all tables as they were; None if it can.

    The applier checks the types of a table that has another character set by their bytes alone, so that the rows of
    some would be stored as other letters. `by` "client": no replay gives a table its character set, and the caller
    warns.
    """
    if planned.bare and by != "client":
        return (
            f"the source logged {named(planned.bare)} without the options of the table (sql_mode ANSI), and no"
            " record of the archive says the character set"
        )
    if not planned.contradicted:
        return None
    return (
        f"the source made {named(planned.contradicted)} in another storage engine than {start.engine}, its default"
        " at the backup: their statements name none, and no record of the archive says which"
    )


OTHER_POINT = "restore a backup that was made after these tables, or a point before them"
"""The hint of a contradiction."""


def named(tables: Iterable[MadeTable]) -> str:
    """Return the names of tables, the first of many."""
    names = list(dict.fromkeys(str(table) for table in tables))
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
