"""What a migration did to the tables, how long it kept others waiting, and what of that is too much. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.quantities import counted, format_duration
from zsnapdb.config.clones import MigrationSettings
from zsnapdb.planning.clone.changed_files import Changes, TableFiles, changed, key_of_file
from zsnapdb.planning.clone.recorded_load import LoadFindings
from zsnapdb.planning.sql_text import TableName

MOST_PROBED = 20
"""The most tables of which readers and writers are watched: more of them would be a load of their own."""


class TableEffect(StrEnum):
    """What a migration did to a table. rewritten: its rows are in another file, as after a copy or TRUNCATE."""

    CREATED = "created"
    DROPPED = "dropped"
    REDEFINED = "redefined"
    REWRITTEN = "rewritten"
    WRITTEN = "written"


@dataclass(frozen=True)
class TouchedTable:
    """A table, and what was done to it."""

    name: TableName
    effects: frozenset[TableEffect]

    @property
    def is_watched(self) -> bool:
        """Whether others could use it before, and can after."""
        return not self.effects & {TableEffect.CREATED, TableEffect.DROPPED}


class TableAccess(StrEnum):
    """How a table is used."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class WaitOfTable:
    """The longest that a statement on a table waited during the migration, in seconds.

    Questions were asked one after the other: so many, of which so many failed, the last with this error ("": none). The
    time from the first that failed to the next that succeeded counts as one wait. `before` is the longest wait in the
    seconds before the migration.
    """

    table: TableName
    access: TableAccess
    longest: float
    before: float
    asked: int
    failed: int = 0
    error: str = ""


def touched(
    before: Mapping[TableName, str],
    after: Mapping[TableName, str],
    stored: Collection[TableFiles],
    changes: Changes,
) -> tuple[TouchedTable, ...]:
    """Return the tables and views that were touched, by name.

    `before` and `after` are their definitions, `stored` the tables of before and after that have rows of their own, and
    `changes` the states of all files, each time after a slow shutdown: then each change of a row is in a file.
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
    """Return the keys of the files with rows that are other files now.

    MariaDB writes a new .frm file for each ALTER TABLE, also for one that copies no row.
    """
    others = (path for path, state in changes.after.items() if _inode(changes, path) not in (None, state.inode))
    return {key for path in others if (key := key_of_file(path)) is not None}


def _inode(changes: Changes, path: str) -> int | None:
    before = changes.before.get(path)
    return before.inode if before is not None else None


def watched(tables: Sequence[TouchedTable], sizes: Mapping[TableName, int]) -> tuple[TableName, ...]:
    """Return the tables whose readers and writers are watched: the largest of those with rows (`sizes` in bytes)."""
    names = [table.name for table in tables if table.is_watched and table.name in sizes]
    return tuple(sorted(names, key=lambda name: (-sizes[name], str(name)))[:MOST_PROBED])


@dataclass(frozen=True)
class MigrationRun:
    """A run of the migration: how long it took (seconds), and why it failed ("": it did not)."""

    seconds: float
    failure: str = ""


class SecondRun(StrEnum):
    """What running the migration again did to the definitions, or that it failed.

    Whether it changed rows again is not known. none: it was not run again.
    """

    CHANGES_NO_DEFINITION = "changes no definition"
    CHANGES_AGAIN = "changes the schema again"
    FAILS = "fails"
    NONE = "was not tried"


@dataclass(frozen=True)
class MigrationFindings:
    """What is known of a migration: its run, the waits that it caused, and what a second run did.

    `without_table`: how long a statement that needs no table waited at most, in seconds. So busy was the host. `load`:
    what became of the recorded load beside it (None: there was none).
    """

    run: MigrationRun
    waits: tuple[WaitOfTable, ...]
    without_table: float
    again: SecondRun
    load: LoadFindings | None = None


def problems(findings: MigrationFindings, limits: MigrationSettings) -> tuple[str, ...]:
    """Return what is wrong by the limits of the site; nothing: the migration may be run on production."""
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
            f"the recorded load stops after {counted(findings.load.transactions, 'transaction')}: {findings.load.error}"
        )
    if limits.repeatable and findings.again in (SecondRun.CHANGES_AGAIN, SecondRun.FAILS):
        texts.append(f"a second run {findings.again}; migration.repeatable demands that it changes no definition")
    return tuple(texts)
