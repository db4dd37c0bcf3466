"""Chooses the backup and the binlogs of a restore, and plans the steps of the replay.

The transactions of a binlog are read only if the restore may stop in this binlog, or if the binlog creates tables
without a recorded engine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.base.patterns import below
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.backup.local_snapshot import IN_NO_REPOSITORY
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs, point_of, points_of
from zsnapdb.jobs.restore.offline_repository import archive_of
from zsnapdb.mysql.binlog.created_tables import CreatedTables
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.mysql.process import programs
from zsnapdb.planning.binlog.archive_times import CommitTimeEvidence
from zsnapdb.planning.binlog.created_tables import OTHER_POINT, Defaults, RecordedTable, contradiction, plan_engines
from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.restore import route_choice
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestoreOrigin, RestorePlan, RestorePoint
from zsnapdb.planning.restore.point_forms import AtBackup, AtTime, Target
from zsnapdb.planning.restore.replays import (
    Boundary,
    Scanned,
    boundary_in,
    find_stop,
    is_past,
    located,
    newest_in_backup,
    replays,
    restore_point,
    start_in,
)
from zsnapdb.planning.restore.route_choice import RestoreRoute
from zsnapdb.planning.restore.steps import Replay, Replayer
from zsnapdb.planning.server_copy.source_facts import option_name
from zsnapdb.planning.server_facts import release_of
from zsnapdb.planning.server_family import family
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest, server_source
from zsnapdb.repository.repository import Repository


@dataclass
class TransactionReader:
    """A reader for the transactions of archived binlogs.

    Each binlog is copied from `local` or downloaded once, into a temporary folder.
    """

    archive: BinlogArchive
    files: dict[tuple[str, str], ArchivedFile]
    folder: Path
    local: LocalBinlogs = field(default_factory=LocalBinlogs)

    def scan(self, binlog: RouteFile) -> Iterator[Scanned]:
        """Yield the transactions of a binlog, in order. The first call copies or downloads the binlog."""
        path = Path(below(self.folder, f"{binlog.incarnation}-{binlog.name}"))
        archived = self.files[binlog.incarnation, binlog.name]
        witness = CommitTimeEvidence(stretches=archived.span.stretches, end=archived.end)
        if not path.exists() and not self.local.copy(self.archive, archived, path):
            self.archive.fetch(archived, path)
        with path.open("rb") as file:
            for entry in transactions(file, binlog.name):
                seen = witness.contradiction(entry.start, entry.end, entry.committed)
                when = commit_time(entry.committed)
                between = None
                if seen is not None:
                    between = None if seen.earliest is None else commit_time(seen.earliest), commit_time(seen.latest)
                yield Scanned(entry.gtid, entry.start, entry.end, when, entry.is_exact, between)


@dataclass(frozen=True)
class SelectedPoint:
    """The point that was chosen for a restore, and the range of binlogs to replay."""

    choice: RestoreRoute
    point: RestorePoint
    start: int = 0
    boundary: Boundary | None = None

    def replays(self, batch_bytes: int) -> tuple[Replay, ...]:
        """Return the replay steps; empty if the point is the backup itself, so that nothing is replayed."""
        if self.boundary is None:
            return ()
        return replays(
            self.choice.point, self.choice.files, self.start, self.boundary.stop, self.boundary.gtids, batch_bytes
        )


def choose(
    instance: Instance,
    repository: Repository,
    manifests: Sequence[Manifest | Summary],
    target: Target,
    loaded: Archive | None,
    history: str | None,
    local: LocalBinlogs,
) -> SelectedPoint:
    """Return the chosen point. If the choice depends on transactions, read them from the binlogs.

    `loaded` contains the archived binlogs; it is None if they are not needed. Binlogs in `local` are not downloaded.
    """
    backups, now = tuple(points_of(manifests)), instance.host.now()
    if isinstance(target, AtBackup) or loaded is None:
        choice = route_choice.choose(target, backups, (), now)
        return SelectedPoint(choice, restore_point(choice, None))
    archive = archive_of(instance, repository)
    files = loaded.files
    by_place = {(file.incarnation, file.name): file for file in files}
    with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
        reader = TransactionReader(archive, by_place, Path(folder), local)
        while True:
            state, holds = loaded.state.at(now), partial(_holds, reader, now)
            choice = route_choice.choose(target, backups, files, now, state, history, holds)
            if choice.exact_backup or not choice.files:
                return SelectedPoint(choice, restore_point(choice, None))
            first = choice.files[0]
            start = start_in(choice.route, reader.scan(first))
            chosen = _bounded(choice, start, reader, now)
            if chosen.point.last is None and _is_past(choice, start, reader, files, manifests):
                # The backup started before the requested time, but its snapshot is later than that time, or a clock was
                # set back. So use an older backup, which can be rolled forward to the requested time.
                backups = backups[: backups.index(choice.point)]
                if not backups:
                    raise NotFound(
                        f"no backup is as old as the requested time: the oldest, {choice.point.backup_id}, contains"
                        " transactions that were committed later",
                        hint="name a later time, or restore that backup by its id",
                    )
                continue
            return chosen


def choose_by_descriptions(
    instance: Instance,
    manifests: Sequence[Manifest | Summary],
    target: Target,
    loaded: Archive | None,
    history: str | None,
) -> SelectedPoint:
    """Return the backup and all binlogs that `choose` may read or replay. No binlog is read.

    The exact point is unknown, so the result has no range to replay.
    """
    backups, now = tuple(points_of(manifests)), instance.host.now()
    if isinstance(target, AtBackup) or loaded is None:
        choice = route_choice.choose(target, backups, (), now)
        return SelectedPoint(choice, restore_point(choice, None))
    choice = route_choice.choose(target, backups, loaded.files, now, loaded.state.at(now), history)
    files = list(choice.files)
    for later in choice.route.files[len(files) :] if choice.files else ():
        files.append(later)
        if later.last_commit is not None:
            break
    choice = replace(choice, files=tuple(files))
    return SelectedPoint(choice, restore_point(choice, None))


def _holds(reader: TransactionReader, now: datetime, choice: RestoreRoute) -> bool:
    try:
        _bounded(choice, start_in(choice.route, reader.scan(choice.files[0])), reader, now)
    except NotFound:
        return False
    return True


def _is_past(
    choice: RestoreRoute,
    start: int,
    reader: TransactionReader,
    files: Sequence[RouteFile],
    manifests: Sequence[Manifest | Summary],
) -> bool:
    """Return whether the chosen backup may contain transactions after the target time."""
    first = choice.files[0]
    backup = next(manifest for manifest in manifests if manifest.backup_id == choice.point.backup_id)
    snapshot_by = commit_time(point_of(backup).before)
    newest = newest_in_backup(first, start, reader.scan(first), files, snapshot_by)
    return is_past(choice.target, newest, snapshot_by)


def _bounded(choice: RestoreRoute, start: int, reader: TransactionReader, now: datetime) -> SelectedPoint:
    end = None
    if isinstance(choice.target, AtTime):
        place, end = find_stop(choice, start, reader.scan, now)
        choice = replace(choice, files=choice.files[: place + 1], boundary=choice.files[place])
    last = choice.files[-1]
    begin = start if len(choice.files) == 1 else last.start
    if choice.boundary is None:
        boundary = Boundary(last.end, None, None, choice.route.reached)
        newest = _newest(choice.files, start, reader)
        return SelectedPoint(choice, replace(restore_point(choice, boundary), last=newest), start, boundary)
    boundary = boundary_in(choice, begin, reader.scan(last), end)
    file = None
    if boundary.following is None:
        # The transaction after this boundary is the first transaction in the next binlogs.
        for later in choice.route.files[len(choice.files) :]:
            following = next(iter(reader.scan(later)), None)
            if following is not None:
                boundary, file = replace(boundary, following=following), later.name
                break
    point = restore_point(choice, boundary, file)
    if point.last is None:
        point = replace(point, last=_newest(choice.files[:-1], start, reader))
    return SelectedPoint(choice, point, start, boundary)


def _newest(files: Sequence[RouteFile], start: int, reader: TransactionReader) -> ArchivedTransaction | None:
    """Return the last transaction of the files; None if they contain none. The first file is replayed from `start`.

    Only the descriptions of the files are read. The commit time in the result is the latest commit time in that
    transaction's file.
    """
    for place in range(len(files) - 1, -1, -1):
        file, begin = files[place], files[place].start if place else start
        if file.last_commit is not None and file.end > begin:
            gtid = reader.files[file.incarnation, file.name].span.last_gtid
            return ArchivedTransaction(gtid, commit_time(file.last_commit), file.name, file.end, "binlog")
    return None


def first_manifest(instance: Instance, repository: Repository, planned: RestorePlan) -> Manifest:
    """Return the manifest of the backup or local set that a plan restores first."""
    local = local_snapshot.read(instance, planned.backup_id) if planned.clones else None
    return local or repository.manifest(instance.name, planned.backup_id)


def uses_this_host(requested: RestoreOrigin) -> bool:
    """Return whether sets and binlogs on this host may be used."""
    return requested is not RestoreOrigin.REPOSITORY


def local_binlogs(candidates: Sequence[Manifest], requested: RestoreOrigin) -> LocalBinlogs:
    """Return the binlogs on this host that belong to the newest backup's server, if they may be used."""
    if not candidates or not uses_this_host(requested):
        return LocalBinlogs()
    server = server_source(candidates[-1]).server
    return LocalBinlogs.of(server.variables, server.key_files)


def located_in(steps: Sequence[Replay], archive: Archive | None, local: LocalBinlogs) -> tuple[Replay, ...]:
    """Return the replay steps, with a mark on each binlog that exists on this host.

    Also update the digests of the binlogs' archived descriptions in the steps.
    """
    files = () if archive is None else archive.files
    named = {(log.incarnation, log.file) for step in steps for log in step.logs}
    here = {
        (file.incarnation, file.name) for file in files if (file.incarnation, file.name) in named and local.has(file)
    }
    # If the archive is not used, the description of a binlog ends where the replay ends. So it differs from the
    # description in the plan.
    digests = {
        (file.incarnation, file.name): file.digest
        for file in files
        if file.is_rotated and file.repository_id != IN_NO_REPOSITORY
    }
    return located(steps, here, digests)


def replayer_of(settings: Settings, flavour: Flavour, version: str) -> Replayer:
    """Return the configured replayer.

    If none is configured, return the server itself if its version can replay binlogs, else the client.
    """
    if settings.restore.replay != "auto":
        return settings.restore.replay
    return "client" if release_of(version) < family(flavour).relay_logs_from else "applier"


def replay_steps(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    planned: RestorePlan,
    steps: Sequence[Replay],
    archive: Archive | None,
    local: LocalBinlogs,
) -> tuple[Replay, ...]:
    """Return the replay steps of a plan, with the replayer and the locations of the binlogs.

    Raises:
        PreflightError: this host lacks a program for the replayer, or `check_engines` refuses the replay.
    """
    replayer = replayer_of(settings, planned.flavour, planned.server_version)
    if steps and replayer == "client":
        client_programs(instance, planned.flavour, planned.server_version)
    replays = tuple(replace(step, by=replayer) for step in located_in(steps, archive, local))
    files = () if archive is None else archive.files
    start = default_engine(planned.variables, instance.settings.server.options)
    check_engines(archive_of(instance, repository), local, files, replays, start)
    return replays


def client_programs(instance: Instance, flavour: Flavour, version: str) -> tuple[Path, Path]:
    """Return the programs for a replay by a client: the binlog tool and the client.

    Raises:
        PreflightError: this host lacks a program; the message names it.
    """
    binary = programs.choose_program(instance.settings.server, flavour, version)
    tool, client = (
        programs.find(names, instance.settings.server, flavour, binary)
        for names in (family(flavour).binlog_programs, family(flavour).client_programs)
    )
    return tool, client


def default_engine(variables: Mapping[str, str], options: Sequence[str]) -> Defaults:
    """Return the default engine when a replay starts: the engine in `server.options`, else the source's default."""
    own = [line.partition("=")[2].strip() for line in options if option_name(line) == "default_storage_engine"]
    return Defaults([variables.get("default_storage_engine", "InnoDB"), *own][-1])


def check_engines(
    archive: BinlogArchive, local: LocalBinlogs, files: Sequence[ArchivedFile], steps: Sequence[Replay], start: Defaults
) -> None:
    """Check that the replay creates each table with its original engine, as far as the binlogs' descriptions show.

    The binlogs of a step are read only if a binlog contains a non-transactional table whose engine is not recorded.
    Reading starts at that binlog, because a later binlog may drop the table.

    Raises:
        PreflightError: the replay would create a table with a different engine, and the original engine is not recorded
    """
    described = {(file.incarnation, file.name): file for file in files}
    for step in steps:
        parts = [(part, described[part.incarnation, part.file]) for part in step.logs]
        flags = [file.span.has_unknown_engine(part.start, part.stop) for part, file in parts]
        first = flags.index(True) if any(flags) else len(flags)
        made = CreatedTables()
        records: dict[tuple[int, int], RecordedTable] = {}
        for number, (part, file) in enumerate(parts[first:]):
            with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
                path = Path(folder) / "binlog"
                if not local.copy(archive, file, path):
                    archive.fetch(file, path)
                os.truncate(path, part.size if part.stop is None else part.stop)
                with path.open("rb") as opened, contextlib.suppress(PreflightError):
                    # Only the server can read an encrypted binlog.
                    made.read(opened, part.file, part.start, number)
            records |= {(number, table.offset): table.record for table in file.span.made}
        refused = contradiction(plan_engines(made.numbered(), records, start), start, step.by)
        if refused is not None:
            raise PreflightError(refused, hint=OTHER_POINT)
