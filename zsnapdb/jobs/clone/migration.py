"""Checks a migration of the site on two ephemeral clones, before it is run on production.

On the first it runs alone: the files of that server, after slow shutdowns before and behind it, say which tables it
touches. On the second it runs beside a reader and a writer of each such table, with the recorded load of production if
that was requested, and then once more.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from zsnapdb import hooks
from zsnapdb.base.errors import ConfigError, HookError, ServerError, UsageError
from zsnapdb.base.model import pool_of
from zsnapdb.config.clones import MigrationSettings
from zsnapdb.config.settings import Settings
from zsnapdb.hooks import Hook, When
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, contract
from zsnapdb.jobs.clone.ephemeral import OWNER, RunningClone, ephemeral_clone
from zsnapdb.jobs.clone.lifecycle import server_of
from zsnapdb.jobs.clone.recorded_load import PlannedLoad, plan_load, start_load
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import LIVE_STATE
from zsnapdb.mysql import variables
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.schema import table_files
from zsnapdb.mysql.schema.definitions import all_definitions_of, definitions_of
from zsnapdb.mysql.schema.schema_catalogue import stored_tables
from zsnapdb.mysql.table_watch import TableWatch
from zsnapdb.planning.clone import migration as planning
from zsnapdb.planning.clone.changed_files import MARGIN_NS, Changes, FileState, TableFiles
from zsnapdb.planning.clone.migration import MigrationFindings, MigrationRun, SecondRun, TouchedTable
from zsnapdb.planning.clone.schema_difference import schema_difference
from zsnapdb.planning.engines import RowPlace
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.table_name import TableName
from zsnapdb.zfs import datasets

_LONG_SECONDS = 6 * 3600.0
Read = TypeVar("Read")
_QUIET_SECONDS = 2.0
"""How long the waits of readers and writers are seen before the migration."""


@dataclass(frozen=True)
class MigrationRequest:
    """The migration to check, and on what.

    `words` are the command (none: the configured one), which runs in `folder`. The clones are of the set `source`.
    `load`: so many seconds of the recorded load after the set go on beside it (None: none); then `latest` is the newest
    set that is so old.
    """

    words: Sequence[str]
    folder: Path
    source: str = "latest"
    load: float | None = None


@dataclass(frozen=True)
class CheckedMigration:
    """What a migration does to the data of a set, and to others who use it meanwhile.

    `difference` is that of all definitions (tables, views, triggers, routines, events), as diff(1) writes it.
    `unwatched` counts the tables beyond those that were watched. `own_bytes`: how much more space the clone had of its
    own after it. `is_masked`: its data was masked.
    """

    backup_id: str
    command: tuple[str, ...]
    tables: tuple[TouchedTable, ...]
    findings: MigrationFindings
    difference: str
    unwatched: int
    own_bytes: int
    is_masked: bool
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _TableState:
    """The definitions of tables and views, the tables with rows, and the states of their files."""

    definitions: Mapping[TableName, str]
    stored: Sequence[CatalogueTable]
    files: Mapping[str, FileState]
    at_ns: int


def check(settings: Settings, instance: Instance, request: MigrationRequest) -> CheckedMigration:
    """Run the migration on clones of the snapshot set, and return what it does; the clones are gone then.

    The migration has a login of its clone in its environment. UsageError or ConfigError, and no clone is made, if there
    is no such program, or if the set would not outlive its first clone. The errors are those of `create`, and of
    `plan_load` if a load was requested.
    """
    source, limits = request.source, instance.settings.migration
    if source == LIVE_STATE:
        raise UsageError(
            "a migration needs a snapshot set that stays for two clones, and the live state is of one",
            hint=f"run `zsnapdb snapshot {instance.name}`, and leave out --from",
        )
    hook = _hook(request.words, limits, request.folder, instance.name)
    load = None if request.load is None else plan_load(settings, instance, source, request.load)
    source = source if load is None else load.backup_id
    with ephemeral_clone(settings, instance, CloneRequest(owner=OWNER, source=source)) as clone:
        instance.events.tell(f"the migration runs on a clone of {clone.info.backup_id}, to see which tables it touches")
        tables, sizes, first = _touched(settings, clone, hook)
    if first.failure:
        return _checked(clone, hook, limits, tables, MigrationFindings(first, (), 0.0, SecondRun.NONE))
    # The same set, also if a newer one came meanwhile.
    seen = clone.info
    with ephemeral_clone(settings, instance, CloneRequest(owner=OWNER, source=seen.original)) as clone:
        catalogue.refuse_other_data(seen, clone.info)
        return _measured(settings, instance, clone, hook, tables, sizes, load)


def _hook(words: Sequence[str], limits: MigrationSettings, folder: Path, instance: str) -> Hook:
    """Return the command with the path of its program."""
    command = tuple(words) or limits.command
    if not command:
        raise UsageError(
            "no migration is named",
            hint=f"name it: `zsnapdb migration-check {instance} -- COMMAND`, or set command in"
            f" [instance.{instance}.migration]",
        )
    program = shutil.which(command[0], path=os.environ.get("PATH", os.defpath))
    if program is None:
        raise ConfigError(f"there is no program {command[0]}", hint="give its absolute path")
    return Hook(When.MIGRATION, (os.path.abspath(program), *command[1:]), limits.timeout, folder=folder)


def _run(clone: RunningClone, hook: Hook) -> MigrationRun:
    began, failure = time.monotonic(), ""
    names = {**clone.login.environment(), "ZSNAPDB_CLONE": clone.info.name, "ZSNAPDB_SOCKET": str(clone.login.socket)}
    try:
        hooks.run(hook, names)
    except HookError as error:
        failure = error.message
    return MigrationRun(time.monotonic() - began, failure)


def _after(run: MigrationRun, read: Callable[[], Read]) -> tuple[Read | None, MigrationRun]:
    """Return what is read of the clone's server after a run. If it does not answer, the run failed."""
    try:
        return read(), run
    except ServerError as error:
        silent = f"the clone's server does not answer after it: {error.message}"
        return None, replace(run, failure=run.failure or silent)


def _touched(
    settings: Settings, clone: RunningClone, hook: Hook
) -> tuple[tuple[TouchedTable, ...], dict[TableName, int], MigrationRun]:
    """Run the migration on the clone; return the tables that it touched, their sizes before, and how it ran."""
    before = _state(clone)
    contract.start_again(server_of(settings, clone.info))
    after, run = _after(_run(clone, hook), lambda: _state(clone))
    sizes = {TableName(table.schema, table.name): table.size for table in before.stored}
    if after is None:
        # Its files say nothing without a slow shutdown.
        return (), sizes, run
    stored = {_files_of(table) for table in (*before.stored, *after.stored)}
    changes = Changes(before.files, after.files, before.at_ns)
    return planning.touched(before.definitions, after.definitions, stored, changes), sizes, run


def _state(clone: RunningClone) -> _TableState:
    """Shut the server down slowly, and return what it had."""
    with clone.session(read_timeout=_LONG_SECONDS) as session:
        definitions = definitions_of(session)
        stored = [
            table
            for table in stored_tables(session)
            if table.schema not in SYSTEM_SCHEMAS and table.row_place is not RowPlace.ELSEWHERE
        ]
        folder = Path(variables.global_variables(session, ["datadir"])["datadir"])
        variables.shut_down_slowly(session)
    clone.process.stop(timeout=_LONG_SECONDS)
    # A file that was written less than this before its state is read counts as changed.
    time.sleep(2 * MARGIN_NS / 1e9)
    return _TableState(definitions, stored, table_files.states(folder), time.time_ns())


def _all_definitions(clone: RunningClone) -> dict[str, str]:
    """Return the definitions of everything that a migration can define, by name."""
    with clone.session(read_timeout=_LONG_SECONDS) as session:
        return all_definitions_of(session)


def _files_of(table: CatalogueTable) -> TableFiles:
    return TableFiles(table.schema, table.name, needs_file=table.row_place is RowPlace.FILES)


def _measured(
    settings: Settings,
    instance: Instance,
    clone: RunningClone,
    hook: Hook,
    tables: tuple[TouchedTable, ...],
    sizes: Mapping[TableName, int],
    planned: PlannedLoad | None,
) -> CheckedMigration:
    """Run the migration beside readers and writers of the tables and the load, and then again without them."""
    names = planning.watched(tables, sizes)
    instance.events.tell(f"it runs again beside a reader and a writer of {len(names)} tables")
    before = _all_definitions(clone)
    load = None if planned is None else start_load(settings, instance, clone, planned)
    space = _own_bytes(settings, instance, clone)
    with _watch(clone, names) as watch:
        time.sleep(_QUIET_SECONDS if names or load else 0)
        watch.begin()
        began = 0.0 if load is None else load.replay.seconds
        run = _run(clone, hook)
    waits = watch.end()
    loaded = None if load is None else load.end(began)
    own_bytes = _own_bytes(settings, instance, clone) - space
    after, run = _after(run, lambda: _all_definitions(clone))
    after = before if after is None else after
    again = SecondRun.NONE
    if not run.failure:
        instance.events.tell("it runs once more")
        again = _again(clone, hook, after)
    difference = schema_difference(before, after)
    findings = MigrationFindings(run, waits.tables, waits.without_table, again, loaded)
    unwatched = sum(table.is_watched and table.name in sizes for table in tables) - len(names)
    return _checked(
        clone,
        hook,
        instance.settings.migration,
        tables,
        findings,
        difference=difference,
        unwatched=unwatched,
        own_bytes=max(0, own_bytes),
    )


def _again(clone: RunningClone, hook: Hook, before: Mapping[str, str]) -> SecondRun:
    """Run the migration once more, and compare the definitions."""
    after, run = _after(_run(clone, hook), lambda: _all_definitions(clone))
    if run.failure:
        return SecondRun.FAILS
    return SecondRun.CHANGES_NO_DEFINITION if after == before else SecondRun.CHANGES_AGAIN


def _own_bytes(settings: Settings, instance: Instance, clone: RunningClone) -> int:
    """Return the space that only the clone occupies, in bytes. What the server has not written yet does not count."""
    datasets.sync(pool_of(clone.info.top))
    return catalogue.of_dataset(settings, instance.host, clone.info.name).own_bytes


@contextmanager
def _watch(clone: RunningClone, names: Sequence[TableName]) -> Iterator[TableWatch]:
    """Watch the tables in the block. The watch ends in any case."""
    watch = TableWatch.start(lambda: clone.session(read_timeout=2 * _LONG_SECONDS), names)
    try:
        yield watch
    finally:
        watch.stop.set()


def _checked(
    clone: RunningClone,
    hook: Hook,
    limits: MigrationSettings,
    tables: tuple[TouchedTable, ...],
    findings: MigrationFindings,
    *,
    difference: str = "",
    unwatched: int = 0,
    own_bytes: int = 0,
) -> CheckedMigration:
    return CheckedMigration(
        clone.info.backup_id,
        hook.argv,
        tables,
        findings,
        difference,
        unwatched,
        own_bytes,
        bool(clone.info.rules),
        planning.problems(findings, limits),
    )
