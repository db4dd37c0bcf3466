"""What the dump program writes of a schema or a table, in which order, and what a dump cannot hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.engines import RowPlace
from zsnapdb.planning.facts import release_of
from zsnapdb.planning.schema_content import CatalogueTable, ColumnName, SchemaContent

HISTORY_OPTION = "--dump-history"
"""The option of mariadb-dump 10.11 and newer that dumps old versions of rows (MariaDB manual, "mariadb-dump")."""
_INSERTS_HISTORY_FROM = (10, 11)
"""First release of MariaDB that loads such a dump (MariaDB manual, "system_versioning_insert_history")."""
_NO_LOCKS = "--skip-add-locks"
"""Without LOCK TABLES in the dump.

Under LOCK TABLES MariaDB 11.8 refuses the rows of a table whose default takes numbers from a sequence
(ER_TABLE_NOT_LOCKED, observed).
"""
_BY_TRANSACTION = "it names transactions of the server it comes from, so a dump cannot hold it"


class DumpScope(StrEnum):
    """What of a schema is dumped: everything in it, or its tables and sequences alone."""

    EVERYTHING = "everything"
    TABLES = "tables"


@dataclass(frozen=True)
class DumpRuns:
    """The runs of the dump program, in order, each with its arguments, and what they leave out, in words.

    `with_history` are the tables of which the old versions of rows are dumped too.
    """

    runs: tuple[tuple[str, ...], ...]
    with_history: frozenset[str]
    left_out: tuple[str, ...]


def objection_to_history(program: str, *, has_option: bool, target_version: str | None) -> str | None:
    """Return why the old versions of rows cannot be dumped, None if they can.

    `target_version` is the version of the server that loads the dump, None for a file.
    """
    if not has_option:
        return f"{program} does not have {HISTORY_OPTION}"
    if target_version is not None and release_of(target_version) < _INSERTS_HISTORY_FROM:
        return f"a server of version {target_version} cannot load it"
    return None


def dump_of_schema(schema: SchemaContent, scope: DumpScope, no_history: str | None) -> DumpRuns:
    """Return how the schema is dumped. `no_history` says why histories cannot be dumped, None if they can.

    The program refuses to dump the history of tables that are versioned by transaction. So they are dumped in a run
    of their own, before the others, because views and routines may need them; and sequences before them, because
    defaults may need those.
    """
    by_time = schema.versioned_by_time if no_history is None else ()
    everything = scope is DumpScope.EVERYTHING
    tables = (
        "--triggers" if everything else "--skip-triggers",
        *(() if everything and not schema.sequence_defaults else (_NO_LOCKS,)),
    )
    code = ("--routines", "--events") if everything else _ignored(schema.name, schema.views)
    runs: tuple[tuple[str, ...], ...]
    if by_time and schema.versioned_by_transaction:
        sequences = (table.name for table in schema.tables if table.is_sequence)
        first = (*sequences, *sorted(schema.versioned_by_transaction))
        runs = (
            (*tables, "--", schema.name, *first),
            (HISTORY_OPTION, *tables, *code, *_ignored(schema.name, first), "--", schema.name),
        )
    else:
        runs = ((*((HISTORY_OPTION,) if by_time else ()), *tables, *code, "--", schema.name),)
    lost = [note for table in schema.stored for note in _lost(table, schema.versioned_by_transaction, no_history)]
    return DumpRuns(runs, frozenset(by_time), tuple(lost))


def dump_of_table(table: CatalogueTable, *, by_transaction: bool, no_history: str | None, rows_only: bool) -> DumpRuns:
    """Return how one table is dumped, without its triggers and locks. `rows_only`: without its definition."""
    has_history = table.is_versioned and not by_transaction and no_history is None
    words = ["--skip-triggers", _NO_LOCKS, *((HISTORY_OPTION,) if has_history else ())]
    if rows_only:
        words += ["--no-create-info", "--skip-disable-keys"]
    lost = _lost(table, frozenset({table.name}) if by_transaction else frozenset(), no_history)
    return DumpRuns(
        ((*words, "--", table.schema, table.name),), frozenset({table.name}) if has_history else frozenset(), lost
    )


def lost_digits(columns: Iterable[ColumnName]) -> tuple[str, ...]:
    """Return what a dump does not hold of these FLOAT columns, whose values the server prints with 6 digits.

    Observed with the dump programs of MySQL 9.7 and MariaDB 11.8: 1234567 is 1234570 in a dump.
    """
    names = ", ".join(f"{column.table}.{column.column}" for column in columns)
    if not names:
        return ()
    return (f"digits of the FLOAT columns {names}: a dump has 6; a single table into a server (--into) keeps all",)


def _ignored(schema: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"--ignore-table={schema}.{name}" for name in names)


def _lost(table: CatalogueTable, by_transaction: frozenset[str], no_history: str | None) -> tuple[str, ...]:
    """Return what of the table's rows a dump of a copy does not hold."""
    if table.row_place is RowPlace.MEMORY:
        return (f"rows of {table.name}: they were in the memory of the server only",)
    if table.row_place is RowPlace.ELSEWHERE:
        return (f"rows of {table.name}: they are not in the server's own files, but where {table.engine} takes them",)
    if not table.is_versioned:
        return ()
    reason = _BY_TRANSACTION if table.name in by_transaction else no_history
    return () if reason is None else (f"history of {table.name}: {reason}",)
