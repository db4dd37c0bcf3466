"""Finds the effects of a migration on tables, the waits that it caused, and the limits that it exceeded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.quantities import format_duration, quantity
from zsnapdb.config.services import MigrationSettings
from zsnapdb.planning.clone.masking import Changes, TableFiles, changed, key_of_file
from zsnapdb.planning.server_facts import release_of
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import TableName


@dataclass(frozen=True)
class RecordedTransaction:
    """A transaction of the recorded load: its relay log, its end in that log, and the time when it is due.

    Relay logs are numbered from 1. The end is in bytes. The due time is in seconds after the start at production speed.
    """

    log: int
    end: int
    due: float


@dataclass(frozen=True)
class AppliedSample:
    """The progress of the applier at a time (`seconds` after the start of the load).

    The applier has applied all transactions before byte `offset` of the relay log `log`.
    """

    seconds: float
    log: int
    offset: int


@dataclass(frozen=True)
class LoadFindings:
    """The result of replaying the recorded load.

    The load started at the snapshot set `begins_at`. The number of applied transactions is `transactions`; production
    committed them within `seconds`. The greatest delay of a transaction in seconds is `late` during the migration, and
    `late_before` before the migration. The field `is_through` is set if the whole load was applied before the migration
    ended. If the load stopped early, `error` contains the reason; otherwise it is "".
    """

    begins_at: str
    transactions: int
    seconds: float
    late: float
    late_before: float
    is_through: bool
    error: str = ""


def load_findings(
    begins_at: str,
    recorded: Iterable[RecordedTransaction],
    samples: Sequence[AppliedSample],
    migration_began: float,
    error: str,
) -> LoadFindings:
    """Return the result of replaying the load. Transactions and samples are in order, and all samples are from one run.

    The delay at a sample is the time since the next transaction was due. If the load stopped with an error, no delay is
    computed after the last sample.
    """
    waiting = iter(recorded)
    following = next(waiting, None)
    done, seconds = 0, 0.0
    late = late_before = 0.0
    for sample in samples:
        while following is not None and (following.log, following.end) <= (sample.log, sample.offset):
            done, seconds = done + 1, max(seconds, following.due)
            following = next(waiting, None)
        if following is None:
            break
        behind = max(0.0, sample.seconds - following.due)
        if sample.seconds < migration_began:
            late_before = max(late_before, behind)
        else:
            late = max(late, behind)
    return LoadFindings(begins_at, done, seconds, late, late_before, following is None, error)


MOST_PROBED = 20
"""The maximum number of tables with probes. More probes would themselves put too much load on the server."""


class TableEffect(StrEnum):
    """The effect of a migration on a table.

    The effect `rewritten` means that the table's rows are in another file after a copy or a TRUNCATE.
    """

    CREATED = "created"
    DROPPED = "dropped"
    REDEFINED = "redefined"
    REWRITTEN = "rewritten"
    WRITTEN = "written"


@dataclass(frozen=True)
class TouchedTable:
    """A table and the effects of the migration on it."""

    name: TableName
    effects: frozenset[TableEffect]

    @property
    def is_watched(self) -> bool:
        """Whether the table existed before the migration and still exists after it."""
        return not self.effects & {TableEffect.CREATED, TableEffect.DROPPED}


class TableAccess(StrEnum):
    """The kind of access to a table."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class TableWait:
    """The longest wait of a statement on a table during the migration, in seconds.

    The probe ran `asked` statements one after the other, and `failed` of them failed. The last error is in `error` (""
    if there is none). The time from the first failure to the next success counts as one wait. The longest wait before
    the migration is `before`, in seconds.
    """

    table: TableName
    access: TableAccess
    longest: float
    before: float
    asked: int
    failed: int = 0
    error: str = ""


def touched_tables(
    before: Mapping[TableName, str], after: Mapping[TableName, str], stored: Collection[TableFiles], changes: Changes
) -> tuple[TouchedTable, ...]:
    """Return the tables and views that the migration touched, ordered by name.

    `before` and `after` are the definitions in both states. The argument `stored` contains the tables that store rows
    in either state. The file states in `changes` were read after slow shutdowns, which write all row changes to the
    files.
    """
    effects: dict[TableName, set[TableEffect]] = {}
    for name in before.keys() | after.keys():
        if name not in before:
            effects[name] = {TableEffect.CREATED}
        elif name not in after:
            effects[name] = {TableEffect.DROPPED}
        elif before[name] != after[name]:
            effects[name] = {TableEffect.REDEFINED}
    replaced = _replaced(changes)
    for written in changed(stored, changes):
        known = effects.setdefault(TableName(written.schema, written.table), set())
        if not known & {TableEffect.CREATED, TableEffect.DROPPED}:
            known.add(TableEffect.REWRITTEN if written.key in replaced else TableEffect.WRITTEN)
    return tuple(TouchedTable(name, frozenset(effects[name])) for name in sorted(effects, key=str))


def _replaced(changes: Changes) -> set[tuple[str, str]]:
    """Return the keys of the replaced row files. MariaDB replaces a .frm file even if ALTER TABLE copies no row."""
    before = changes.before
    others = (path for path, state in changes.after.items() if path in before and before[path].inode != state.inode)
    return {key for path in others if (key := key_of_file(path)) is not None}


def watched_tables(tables: Sequence[TouchedTable], sizes: Mapping[TableName, int]) -> tuple[TableName, ...]:
    """Return the tables to probe: the largest tables that are in `sizes` (in bytes), largest first."""
    names = [table.name for table in tables if table.is_watched and table.name in sizes]
    return tuple(sorted(names, key=lambda name: (-sizes[name], str(name)))[:MOST_PROBED])


@dataclass(frozen=True)
class MigrationRun:
    """A run of the migration: its duration in seconds, and the reason why it failed (empty if it succeeded)."""

    seconds: float
    failure: str = ""


class SecondRun(StrEnum):
    """The result of a second run of the migration: its effect on the table definitions, or a failure.

    The result does not show whether the second run changed rows. The value NONE means that there was no second run.
    """

    CHANGES_NO_DEFINITION = "changes no definition"
    CHANGES_AGAIN = "changes the schema again"
    FAILS = "fails"
    NONE = "was not tried"


@dataclass(frozen=True)
class MigrationFindings:
    """The findings about a migration: its run, the waits that it caused, and the effect of a second run.

    The longest wait of a statement that needs no table is `without_table`, in seconds. The load of the host causes this
    wait. If a recorded load ran with the migration, `load` is its result.
    """

    run: MigrationRun
    waits: tuple[TableWait, ...]
    without_table: float
    again: SecondRun
    load: LoadFindings | None = None


def problems(findings: MigrationFindings, limits: MigrationSettings) -> tuple[str, ...]:
    """Return the problems: failures of the migration, and violations of the configured limits.

    If there are none, the migration may run on production.
    """
    texts = [f"the migration fails: {findings.run.failure}"] if findings.run.failure else []
    if limits.longest is not None and findings.run.seconds > limits.longest:
        texts.append(f"it takes {findings.run.seconds:.1f} s; migration.longest is {format_duration(limits.longest)}")
    most = {
        TableAccess.READ: ("longest_read_wait", limits.longest_read_wait),
        TableAccess.WRITE: ("longest_write_wait", limits.longest_write_wait),
    }
    for wait in findings.waits:
        name, limit = most[wait.access]
        if limit is not None and wait.longest > limit:
            texts.append(
                f"a {wait.access} of {wait.table} waits {wait.longest:.2f} s; migration.{name} is"
                f" {format_duration(limit)}"
            )
        if wait.failed:
            texts.append(f"{wait.failed} of {wait.asked} {wait.access}s of {wait.table} fail: {wait.error}")
    if findings.load is not None and findings.load.error:
        texts.append(
            f"the recorded load stops after {quantity(findings.load.transactions, 'transaction')}:"
            f" {findings.load.error}"
        )
    if limits.repeatable and findings.again in (SecondRun.CHANGES_AGAIN, SecondRun.FAILS):
        texts.append(f"a second run {findings.again}; migration.repeatable demands that it changes no definition")
    return tuple(texts)


_BAD = ("error", "corrupt", "warning")
_GOOD_TEXTS = ("ok", "table is already up to date")
_CANNOT = "doesn't support check"
"""The note of an engine without CHECK TABLE. The note does not mean that the table has a problem."""


@dataclass(frozen=True)
class QueryResult:
    """A query's result: the number of rows, and the SHA-256 of the rows in the order in which they arrived."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class ComparedQuery:
    """A query and its results before and after the upgrade.

    If `after` is None, the query failed after the upgrade with the error `problem`.
    """

    query: str
    before: QueryResult
    after: QueryResult | None
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True)
class CheckedTable:
    """A table and the answer of the new server's CHECK TABLE: its status or its complaints."""

    table: str
    answer: str
    is_good: bool


def only_schema(schemas: Sequence[str]) -> str:
    """Return the application's schema if there is exactly one; otherwise ""."""
    return schemas[0] if len(schemas) == 1 else ""


def unknown_modes(flavour: Flavour, version: str, sql_mode: str) -> tuple[str, ...]:
    """Return the modes in `sql_mode` that a server of this version does not know."""
    facts = family(flavour)
    if release_of(version) < facts.removed_modes_from:
        return ()
    return tuple(mode for mode in sql_mode.split(",") if mode in facts.removed_modes)


def judge_table(table: str, rows: Sequence[tuple[str, str]]) -> CheckedTable:
    """Return the verdict about a table, based on the rows (type, text) from CHECK TABLE.

    The table is good if its status is OK or its engine has no check, and if no row reports an error or a warning.
    """
    complaints = [f"{kind}: {text}" for kind, text in rows if kind.lower() in _BAD]
    last = rows[-1][1] if rows else "(no answer)"
    good = not complaints and (last.lower() in _GOOD_TEXTS or _CANNOT in last.lower())
    return CheckedTable(table, "; ".join(complaints) or last, good)


def complaints(log: str) -> tuple[str, ...]:
    """Return the warnings and errors in a server's log, each distinct text once."""
    messages: dict[str, None] = {}
    for line in log.splitlines():
        for mark in ("[Warning]", "[ERROR]"):
            if mark in line:
                messages[line[line.index(mark) :]] = None
    return tuple(messages)
