"""Tests a user's schema migration on two ephemeral clones, before the migration runs on production.

On the first clone the migration runs alone. Before and after the migration, a slow shutdown writes all changes to the
table files. The files then show which tables were changed. On the second clone, the migration runs while a reader and a
writer use each changed table. If requested, production's recorded load runs too. Finally the migration runs a second
time.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from posixpath import join
from typing import TypeVar
from urllib.parse import quote

from zsnapdb import hooks
from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import ConfigError, HookError, NotFound, PreflightError, ServerError, UsageError
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.services import MigrationSettings
from zsnapdb.config.settings import Settings
from zsnapdb.hooks import Hook, When
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, isolated_start, masking_requirement
from zsnapdb.jobs.clone.create import OWNER, RunningClone, ephemeral_clone
from zsnapdb.jobs.clone.lifecycle import server_of
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import LIVE_STATE, with_volumes
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.restore.backup_selection import choose, local_binlogs, located_in, replayer_of
from zsnapdb.jobs.restore.offline_repository import archive_of, known_archive_of, stored_or_here
from zsnapdb.jobs.restore.replay import fetch_logs
from zsnapdb.mysql import variables
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.mysql.probe import SYSTEM_SCHEMAS
from zsnapdb.mysql.replication.replay import PacedReplay, RelayLogs, ReplayInput
from zsnapdb.mysql.schema import tablespace_overwrite
from zsnapdb.mysql.schema.definitions import all_definitions_of, definitions_of
from zsnapdb.mysql.schema.schema_catalogue import schemas, stored_tables
from zsnapdb.mysql.table_wait_times import TableWatch
from zsnapdb.planning.clone import migration_findings as planning
from zsnapdb.planning.clone.diff import schema_difference
from zsnapdb.planning.clone.masking import MARGIN_NS, Changes, FileState, files_of
from zsnapdb.planning.clone.migration_findings import (
    LoadFindings,
    MigrationFindings,
    MigrationRun,
    RecordedTransaction,
    SecondRun,
    TouchedTable,
    load_findings,
)
from zsnapdb.planning.restore.plan import RestoreOrigin
from zsnapdb.planning.restore.point_forms import AtTime
from zsnapdb.planning.restore.replays import mode_objection
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.schema_content import CatalogueTable, RowPlace
from zsnapdb.planning.server_copy.copy_options import binlog_paths
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets

_ALL = 1 << 62
"""A batch size in bytes that exceeds the total size of all binlogs."""
_LATEST = "latest"
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class PlannedLoad:
    """The load to replay: the transactions that production committed in a certain time after a snapshot set."""

    manifest: Manifest
    step: Replay
    repository: Repository

    @property
    def backup_id(self) -> str:
        """The set from which the clones are created."""
        return self.manifest.backup_id


def plan_load(settings: Settings, instance: Instance, source: str, seconds: float) -> PlannedLoad:
    """Return the load: the transactions in the first `seconds` after the creation of the set `source`.

    The source `latest` is the newest set that is at least `seconds` old.

    Raises:
        PreflightError: no set is old enough, the server cannot replay relay logs, nothing was committed, or clones are
            masked (the binlogs contain the rows that masking hides).
        NotFound: the binlogs do not contain the load.
    """
    if masking_requirement.rules_of(instance.settings.masking, requested=False):
        raise PreflightError(
            f"clones of {instance.name} are masked, and the recorded load has the rows that masking hides",
            hint="leave out --load",
        )
    instance = with_volumes(instance)
    manifest = _set_of(instance, source, seconds)
    server = server_source(manifest).server
    if replayer_of(settings, server.flavour, server.version) == "client":
        raise PreflightError(
            f"{server.flavour} {server.version} of {instance.name} does not apply binlogs itself (or restore.replay"
            f" excludes it), so they cannot be replayed at the original rate",
            hint="leave out --load",
        )
    return stored_or_here(instance, lambda repository: _from(instance, repository, manifest, seconds))


def _set_of(instance: Instance, source: str, seconds: float) -> Manifest:
    known = [one for one in local_snapshot.load(instance) if is_of_server(one)]
    named = [one for one in known if source in (_LATEST, one.backup_id)]
    latest = instance.host.now() - timedelta(seconds=seconds)
    old = [one for one in named if one.created <= latest]
    if not old:
        what = "no snapshot set" if source == _LATEST else f"no snapshot set {source}"
        have = f"the oldest here was made {known[0].created:%Y-%m-%dT%H:%M:%SZ}" if known else "there is none"
        raise PreflightError(
            f"{what} on this host is {format_duration(seconds)} old; {have}",
            hint="name a shorter --load, or another set with --from",
        )
    return old[-1]


def _from(instance: Instance, repository: Repository, manifest: Manifest, seconds: float) -> PlannedLoad:
    target = AtTime(manifest.created + timedelta(seconds=seconds))
    archive = known_archive_of(instance, repository, target)
    local = local_binlogs([manifest], RestoreOrigin.AUTO)
    chosen = choose(instance, repository, [manifest], target, archive, None, local)
    objection = mode_objection(chosen.choice.files, server_source(manifest).server.variables.get("gtid_mode"))
    if objection is not None:
        raise PreflightError(objection, hint="name a set from after gtid_mode was changed with --from")
    steps = located_in(chosen.replays(_ALL), archive, local)
    if not steps:
        raise NotFound(
            f"no binlog contains the transactions that followed {manifest.backup_id} within {format_duration(seconds)}",
            hint="run `zsnapdb binlog status` to list the archived binlogs",
        )
    return PlannedLoad(manifest, steps[0], repository)


@dataclass(frozen=True)
class RunningLoad:
    """The recorded load while the clone's server replays it.

    `first` is the commit time of the first transaction (microseconds UTC).
    """

    planned: PlannedLoad
    logs: RelayLogs
    first: int
    replay: PacedReplay

    def end(self, migration_began: float) -> LoadFindings:
        """Stop the load and return the findings about it.

        `migration_began` is the time in seconds from the start of the load to the start of the migration.
        """
        self.replay.end()
        recorded = (
            RecordedTransaction(number, end, (committed - self.first) / _MICROSECONDS)
            for number, end, committed in _commits(self.planned.step, self.logs)
        )
        return load_findings(self.planned.backup_id, recorded, self.replay.samples, migration_began, self.replay.error)


def start_load(settings: Settings, instance: Instance, clone: RunningClone, planned: PlannedLoad) -> RunningLoad:
    """Copy the binlogs into the clone, and start their replay by the clone's server.

    Raises:
        PreflightError: the clone has no space for the binlogs, or nothing was committed during the load.
    """
    copy, step = server_of(settings, clone.info).copy, planned.step
    free = datasets.available(clone.info.top)
    if free < 2 * step.size:
        raise PreflightError(
            f"the recorded load has {step.size} bytes of binlogs, and the clone has room for {free}",
            hint="name a shorter --load, or make room",
        )
    paths = binlog_paths(copy.variables, "relay_log")
    # MariaDB without relay_log names its relay logs after its pid file (sql/log.cc, generate_name).
    base = paths[0] if paths is not None else join(copy.variables["datadir"], "server-relay-bin")
    logs = RelayLogs(Path(copy.paths.translate(base)), is_set=paths is not None)
    archive = archive_of(instance, planned.repository, only={part.file: part.size for part in step.logs})
    fetch_logs(archive, LocalBinlogs.of(copy.variables, copy.key_files), step, logs, instance.events)
    first = next(_commits(step, logs), None)
    if first is None:
        raise PreflightError(
            f"nothing was committed after {planned.backup_id} during the load", hint="name a longer --load"
        )
    logs.take(len(step.logs), copy.settings.user)
    sizes = tuple(logs.file(number).stat().st_size for number in range(1, len(step.logs) + 1))
    delay = math.ceil(instance.host.now().timestamp() - first[2] / _MICROSECONDS)
    replay = PacedReplay.start(
        lambda: clone.session(read_timeout=120.0),
        clone.info.flavour,
        logs,
        ReplayInput(sizes, step.logs[0].start, step.logs[0].file, None),
        delay,
        settings.restore.workers or len(os.sched_getaffinity(0)),
    )
    return RunningLoad(planned, logs, first[2], replay)


def _commits(step: Replay, logs: RelayLogs) -> Iterator[tuple[int, int, int]]:
    """Yield the log number, the end offset and the commit time (microseconds UTC) of each transaction."""
    for number, part in enumerate(step.logs, 1):
        with safe_open.open_to_read(logs.file(number)) as file:
            for one in transactions(file, part.file, part.start):
                yield number, one.end, one.committed


_LONG_SECONDS = 6 * 3600.0
Read = TypeVar("Read")
_QUIET_SECONDS = 2.0
"""The time in seconds for which the readers and writers are measured without the migration, before it starts."""


@dataclass(frozen=True)
class MigrationRequest:
    """The migration to check, and the data for the check.

    `words` contains the command and its arguments. The command runs in `folder`. If `words` is empty, the configured
    command is used. The clones are created from the set `source`. If `load` is None, no load is replayed. Otherwise the
    transactions of the first `load` seconds after the creation of this set are replayed during the migration. In this
    case, `latest` is the newest set that is at least `load` seconds old.
    """

    words: Sequence[str]
    folder: Path
    source: str = "latest"
    load: float | None = None


@dataclass(frozen=True)
class CheckedMigration:
    """The effects of a migration on a copy of the data, and on other sessions that use the data.

    `difference` shows how the definitions (tables, views, triggers, routines, events) differ before and after the
    migration, as a unified diff. `unwatched` is the number of changed tables without readers and writers. `own_bytes`
    is the growth of the clone's own space in bytes. `is_masked` says whether the data of the clone was masked.
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
    definitions: Mapping[TableName, str]
    stored: Sequence[CatalogueTable]
    files: Mapping[str, FileState]
    at_ns: int


def check(settings: Settings, instance: Instance, request: MigrationRequest) -> CheckedMigration:
    """Run the migration on clones of the snapshot set, and return its effects. Afterwards the clones are destroyed.

    The migration finds the login of its clone in environment variables. Raises the errors of `create`, and of
    `plan_load` if a load was requested.

    Raises:
        UsageError: no migration command is given, or the source is `live`. (A live set is destroyed with its first
            clone, so it cannot be cloned twice.)
        ConfigError: the program does not exist.
    """
    source, limits = request.source, instance.settings.migration
    if source == LIVE_STATE:
        raise UsageError(
            "a migration needs two clones of one snapshot set, and `live` gives only one",
            hint=f"run `zsnapdb snapshot {instance.name}`, and leave out --from",
        )
    hook = _hook(request.words, limits, request.folder, instance.name)
    load = None if request.load is None else plan_load(settings, instance, source, request.load)
    source = source if load is None else load.backup_id
    with ephemeral_clone(settings, instance, CloneRequest(owner=OWNER, source=source)) as clone:
        instance.events.tell(f"the migration runs on a clone of {clone.info.backup_id}, to see which tables it touches")
        tables, sizes, first = _touched_tables(settings, clone, hook)
    if first.failure:
        return _check_result(clone, hook, limits, tables, MigrationFindings(first, (), 0.0, SecondRun.NONE))
    # Use the same set for both clones, even if a newer set was created meanwhile.
    seen = clone.info
    with ephemeral_clone(settings, instance, CloneRequest(owner=OWNER, source=seen.original)) as clone:
        catalogue.refuse_other_data(seen, clone.info)
        return _measured(settings, instance, clone, hook, tables, sizes, load)


def _hook(words: Sequence[str], limits: MigrationSettings, folder: Path, instance: str) -> Hook:
    command = tuple(words) or limits.command
    if not command:
        raise UsageError(
            "no migration command is given",
            hint=f"give it: `zsnapdb migration-check {instance} -- COMMAND`, or set command in"
            f" [instance.{instance}.migration]",
        )
    program = shutil.which(command[0], path=os.environ.get("PATH", os.defpath))
    if program is None:
        raise _missing_program(Path(command[0]))
    return Hook(When.MIGRATION, (os.path.abspath(program), *command[1:]), limits.timeout, folder=folder)


def _missing_program(named: Path) -> ConfigError:
    """Return the error for a command that cannot be started. The usual cause is a script that is not executable."""
    if named.is_file():
        return ConfigError(
            f"{named} is not executable", hint=f"run `chmod +x {named}`, or name its interpreter: `-- python3 {named}`"
        )
    return ConfigError(f"there is no program {named}", hint="give its path, from the current folder or absolute")


def _environment(clone: RunningClone) -> dict[str, str]:
    """Return the environment variables for a migration's login. The URL contains the schema if there is only one."""
    login = clone.login
    with clone.session() as session:
        schema = planning.only_schema([name for name in schemas(session) if name not in SYSTEM_SCHEMAS])
    return {
        **login.environment(),
        "DATABASE_URL": login.dsn + quote(schema, safe=""),
        "ZSNAPDB_DATABASE": schema,
        "ZSNAPDB_USER": login.user,
        "ZSNAPDB_CLONE": clone.info.name,
        "ZSNAPDB_SOCKET": str(login.socket),
    }


def _run(clone: RunningClone, hook: Hook) -> MigrationRun:
    names = _environment(clone)
    began, failure = time.monotonic(), ""
    try:
        hooks.run(hook, names)
    except HookError as error:
        failure = error.message
    return MigrationRun(time.monotonic() - began, failure)


def _after(run: MigrationRun, read: Callable[[], Read]) -> tuple[Read | None, MigrationRun]:
    """Return the result of `read`, and the run. If the clone's server does not answer, the run counts as failed."""
    try:
        return read(), run
    except ServerError as error:
        silent = f"the clone's server does not answer after it: {error.message}"
        return None, replace(run, failure=run.failure or silent)


def _touched_tables(
    settings: Settings, clone: RunningClone, hook: Hook
) -> tuple[tuple[TouchedTable, ...], dict[TableName, int], MigrationRun]:
    before = _state(clone)
    isolated_start.start_again(server_of(settings, clone.info))
    after, run = _after(_run(clone, hook), lambda: _state(clone))
    sizes = {TableName(table.schema, table.name): table.size for table in before.stored}
    if after is None:
        # The files show which tables were changed only after a slow shutdown.
        return (), sizes, run
    stored = {files_of(table) for table in (*before.stored, *after.stored)}
    changes = Changes(before.files, after.files, before.at_ns)
    return planning.touched_tables(before.definitions, after.definitions, stored, changes), sizes, run


def _state(clone: RunningClone) -> _TableState:
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
    # A file that was written less than this margin before its state was read counts as changed.
    time.sleep(2 * MARGIN_NS / 1e9)
    return _TableState(definitions, stored, tablespace_overwrite.states(folder), time.time_ns())


def _all_definitions(clone: RunningClone) -> dict[str, str]:
    with clone.session(read_timeout=_LONG_SECONDS) as session:
        return all_definitions_of(session)


def _measured(
    settings: Settings,
    instance: Instance,
    clone: RunningClone,
    hook: Hook,
    tables: tuple[TouchedTable, ...],
    sizes: Mapping[TableName, int],
    planned: PlannedLoad | None,
) -> CheckedMigration:
    names = planning.watched_tables(tables, sizes)
    instance.events.tell(f"it runs again, with a reader and a writer on {len(names)} tables")
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
    return _check_result(
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
    after, run = _after(_run(clone, hook), lambda: _all_definitions(clone))
    if run.failure:
        return SecondRun.FAILS
    return SecondRun.CHANGES_NO_DEFINITION if after == before else SecondRun.CHANGES_AGAIN


def _own_bytes(settings: Settings, instance: Instance, clone: RunningClone) -> int:
    """Return the bytes that only the clone occupies. Data that the server has not written yet is not included."""
    datasets.sync(pool_of(clone.info.top))
    return catalogue.of_dataset(settings, instance.host, clone.info.name).own_bytes


@contextmanager
def _watch(clone: RunningClone, names: Sequence[TableName]) -> Iterator[TableWatch]:
    watch = TableWatch.start(lambda: clone.session(read_timeout=2 * _LONG_SECONDS), names)
    try:
        yield watch
    finally:
        watch.stop.set()


def _check_result(
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
