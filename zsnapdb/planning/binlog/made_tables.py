"""The tables that statements without ENGINE made, and how a replay gives them the engine that they had. Pure.

No event says the default_storage_engine of a session (status variables of query events: statement_events.h of MySQL,
log_event.h of MariaDB). Two things do: whether transactions on the table are those of a transactional engine, and the
engine that the server said the table had when the archiver saw the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster", "ndb"})
_NAMED = 5
MOST_MADE = 4096
"""How many tables the description of a binlog says more of."""


@dataclass(frozen=True)
class MadeTable:
    """A table or sequence that a statement without ENGINE made: its transaction, its statement, and what says more.

    `start` and `end` are the bytes of the transaction in its file, `offset` is where the event of the statement begins.
    `is_transactional` None: nothing in the binlogs says it. `lacks_options`: the server wrote the statement under a
    sql_mode in which it leaves out all options of the table. `is_touched`: a later statement alters, renames or drops a
    table of this name; `is_dropped`: it drops the table.
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

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class RecordedTable:
    """What the server said of a table when the archiver had read its statement: engine, and collation if it has one."""

    engine: str
    collation: str | None = None


@dataclass(frozen=True)
class EngineStop:
    """Before the transaction at `offset` of the replay's file `number` (from 1), the default engine becomes `engine`.

    `database` and `collation`: this transaction alone makes its table where the database has this collation.
    """

    number: int
    offset: int
    end: int
    engine: str
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


def plan_engines(
    made: Iterable[tuple[int, MadeTable]], records: Mapping[tuple[int, int], RecordedTable], default: str
) -> EnginePlan:
    """Return the engines for the tables, each with the number of its file, in the order of the binlogs.

    `records` are by the number of the file and the offset of the statement. `default` is the engine that the replay
    begins with.
    """
    stops: list[EngineStop] = []
    unknown: list[MadeTable] = []
    contradicted: list[MadeTable] = []
    bare: list[MadeTable] = []
    current = default
    for number, table in made:
        record = records.get((number, table.offset))
        is_known = record is not None and fits(record.engine, table.is_transactional)
        if record is not None and is_known:
            wanted = record.engine
        elif fits(default, table.is_transactional):
            wanted = default
        elif table.is_transactional:
            wanted = "InnoDB"
        else:
            contradicted += [] if table.is_dropped else [table]
            continue
        if not is_known and not table.is_transactional and not table.is_dropped:
            unknown.append(table)
        collation = record.collation if record is not None and table.lacks_options else None
        if table.lacks_options and collation is None and not table.is_dropped:
            bare.append(table)
        if wanted.casefold() != current.casefold() or collation is not None:
            place = table.schema if collation is not None else None
            stops.append(EngineStop(number, table.start, table.end, wanted, place, collation))
            current = wanted
    return EnginePlan(tuple(stops), tuple(unknown), tuple(contradicted), tuple(bare))


def named(tables: Iterable[MadeTable]) -> str:
    """Return the names of tables, the first of many."""
    names = list(dict.fromkeys(str(table) for table in tables))
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest
