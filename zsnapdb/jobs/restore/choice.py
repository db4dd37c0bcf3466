"""Chooses backup and binlogs of a restore. Reads the transactions of the binlogs that decide where it stops."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from zsnapdb.base.errors import DamagedError, NotThere
from zsnapdb.base.model import pool_of
from zsnapdb.base.patterns import below
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs, point_of, points_of
from zsnapdb.jobs.record import put_back_record
from zsnapdb.jobs.record.host_record import StoredCheck
from zsnapdb.jobs.record.record_file import BACKUPS, read
from zsnapdb.jobs.restore.without_store import archive_of
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.planning.binlog.commit_times import Witness
from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.repository.host_record import BackupRecord
from zsnapdb.planning.restore import boundaries, points
from zsnapdb.planning.restore.boundaries import Boundary, Scanned, boundary_in, find_stop, restore_point, start_in
from zsnapdb.planning.restore.newest import asks_for_newest
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestoreOrigin, RestorePlan, RestorePoint, SetStanding
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.replays import replays
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.restore.targets import AtBackup, AtTime, Target
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.manifest import Manifest, is_of_server
from zsnapdb.repository.repository import Repository


@dataclass
class TransactionReader:
    """Reads the transactions of archived binlogs.

    Each binlog is copied once into a temporary folder: from `local`, else it is fetched.
    """

    archive: BinlogArchive
    files: dict[tuple[str, str], ArchivedFile]
    folder: Path
    local: LocalBinlogs = field(default_factory=LocalBinlogs)

    def scan(self, binlog: RouteFile) -> Iterator[Scanned]:
        """Yield the transactions of a binlog, in order. The first request copies or fetches the binlog."""
        path = Path(below(self.folder, f"{binlog.incarnation}-{binlog.name}"))
        archived = self.files[binlog.incarnation, binlog.name]
        witness = Witness(stretches=archived.span.stretches, end=archived.end)
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
class Chosen:
    """The chosen point, and the range to replay."""

    choice: RestoreRoute
    point: RestorePoint
    start: int = 0
    boundary: Boundary | None = None

    def replays(self, batch_bytes: int) -> tuple[Replay, ...]:
        """Return the replay steps; none if the backup alone is the point."""
        if self.boundary is None:
            return ()
        return replays(
            self.choice.point, self.choice.files, self.start, self.boundary.stop, self.boundary.gtids, batch_bytes
        )


def choose(
    instance: Instance,
    repository: Repository,
    manifests: Sequence[Manifest],
    target: Target,
    loaded: Archive | None,
    history: str | None,
    local: LocalBinlogs,
) -> Chosen:
    """Return the choice. This reads the transactions of the binlogs that decide it.

    `loaded` are the archived binlogs (None: they are not needed). Those that are among `local` are not fetched.
    """
    backups, now = tuple(points_of(manifests)), instance.host.now()
    if isinstance(target, AtBackup) or loaded is None:
        choice = points.choose(target, backups, (), now)
        return Chosen(choice, restore_point(choice, None))
    archive = archive_of(instance, repository)
    files = loaded.files
    by_place = {(file.incarnation, file.name): file for file in files}
    with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
        reader = TransactionReader(archive, by_place, Path(folder), local)
        while True:
            state, holds = loaded.state.at(now), partial(_holds, reader, now)
            choice = points.choose(target, backups, files, now, state, history, holds)
            if choice.exact_backup or not choice.files:
                return Chosen(choice, restore_point(choice, None))
            first = choice.files[0]
            start = start_in(choice.route, reader.scan(first))
            chosen = _bounded(choice, start, reader, now)
            if chosen.point.last is None and _is_past(choice, start, reader, files, manifests):
                # The backup was begun before that time and snapshotted after it, or a clock was set back: only an older
                # backup leads there.
                backups = points.without(backups, choice.point)
                if not backups:
                    raise NotThere(
                        f"no backup is as old as the requested time: the oldest, {choice.point.backup_id}, contains"
                        " transactions that were committed later",
                        hint="name a later time, or restore that backup by its id",
                    )
                continue
            return chosen


def _holds(reader: TransactionReader, now: datetime, choice: RestoreRoute) -> bool:
    """Whether the binlogs of a choice have the transaction that is its target."""
    try:
        _bounded(choice, start_in(choice.route, reader.scan(choice.files[0])), reader, now)
    except NotThere:
        return False
    return True


def _is_past(
    choice: RestoreRoute,
    start: int,
    reader: TransactionReader,
    files: Sequence[RouteFile],
    manifests: Sequence[Manifest],
) -> bool:
    """Whether the backup of the choice may contain more than the target time."""
    first = choice.files[0]
    backup = next(manifest for manifest in manifests if manifest.backup_id == choice.point.backup_id)
    snapshot_by = commit_time(point_of(backup).before)
    newest = boundaries.newest_in_backup(first, start, reader.scan(first), files, snapshot_by)
    return boundaries.is_past(choice.target, newest, snapshot_by)


def _bounded(choice: RestoreRoute, start: int, reader: TransactionReader, now: datetime) -> Chosen:
    end = None
    if isinstance(choice.target, AtTime):
        place, end = find_stop(choice, start, reader.scan, now)
        choice = replace(choice, files=choice.files[: place + 1], boundary=choice.files[place])
    last = choice.files[-1]
    begin = start if len(choice.files) == 1 else last.start
    if choice.boundary is None:
        boundary = Boundary(last.end, None, None, choice.route.reached)
        newest = _newest(choice.files, start, reader)
        return Chosen(choice, replace(restore_point(choice, boundary), last=newest), start, boundary)
    boundary = boundary_in(choice, begin, reader.scan(last), end)
    file = None
    if boundary.following is None:
        # The transaction after the boundary is the first transaction of the next binlogs.
        for later in choice.route.files[len(choice.files) :]:
            following = next(iter(reader.scan(later)), None)
            if following is not None:
                boundary, file = replace(boundary, following=following), later.name
                break
    point = restore_point(choice, boundary, file)
    if point.last is None:
        point = replace(point, last=_newest(choice.files[:-1], start, reader))
    return Chosen(choice, point, start, boundary)


def _newest(files: Sequence[RouteFile], start: int, reader: TransactionReader) -> ArchivedTransaction | None:
    """Return the last transaction of files, the first of them replayed from `start` on. None if they contain none.

    The files are not read for it: its time is the latest of its file.
    """
    for place in range(len(files) - 1, -1, -1):
        file, begin = files[place], files[place].start if place else start
        if file.last_commit is not None and file.end > begin:
            gtid = reader.files[file.incarnation, file.name].span.last_gtid
            return ArchivedTransaction(gtid, commit_time(file.last_commit), file.name, file.end, "binlog")
    return None


def is_local_set(manifest: Manifest) -> bool:
    """Whether the manifest is one that this host keeps: the set cannot be fetched with it, only cloned."""
    return manifest.repository_id == local_snapshot.IN_NO_REPOSITORY


def standing_of(instance: Instance, backup_id: str) -> SetStanding:
    """Return what the records of this host say of a set, without a question to a store.

    The description of a set on this host does not tell: a stored backup has one too, for while its store is away.
    """
    folder = instance.host.records / instance.name
    try:
        records = [read(place / BACKUPS, BackupRecord) for place in sorted(folder.iterdir()) if place.is_dir()]
    except FileNotFoundError:
        return SetStanding.LOCAL
    except (OSError, DamagedError):
        return SetStanding.UNKNOWN
    stored = {backup.backup_id for record in records if record is not None for backup in record.stored}
    return SetStanding.STORED if backup_id in stored else SetStanding.LOCAL


def first_manifest(instance: Instance, repository: Repository, planned: RestorePlan) -> Manifest:
    """Return the manifest of the backup, or of the local set, that a plan begins with."""
    local = local_snapshot.read(instance, planned.backup_id) if planned.clones else None
    return local or repository.manifest(instance.name, planned.backup_id)


def names_local_set(instance: Instance, target: Target, origin: RestoreOrigin) -> bool:
    """Whether the target names a local set at which the restore may begin."""
    if origin is RestoreOrigin.REPOSITORY or not isinstance(target, AtBackup) or target.backup_id is None:
        return False
    return local_snapshot.read(instance, target.backup_id) is not None


def with_local_sets(
    instance: Instance,
    stored: Sequence[Manifest],
    target: Target,
    origin: RestoreOrigin,
    top: str | None,
    checked: StoredCheck,
) -> list[Manifest]:
    """Return the stored backups and the local sets at which a restore may begin, oldest first.

    Local sets count unless the repository was requested, or the newest backup. They must be of the server of the newest
    stored backup, and in the pool of the target `top` (None: it will be in theirs), because a clone stays in its pool.
    """
    if origin is RestoreOrigin.REPOSITORY or target == AtBackup(None):
        return list(stored)
    known = {manifest.backup_id for manifest in stored}
    writer = stored[-1].writer if stored else None
    loaded = local_snapshot.load(instance)
    left = put_back_record.taken_back(instance, loaded) if asks_for_newest(target) else {}
    local = [
        manifest
        for manifest in loaded
        if manifest.backup_id not in (known | left.keys())
        and is_of_server(manifest)
        and writer in (None, manifest.writer)
        and (top is None or all(pool_of(volume.dataset) == pool_of(top) for volume in manifest.volumes))
    ]
    return list(checked.ordered([*stored, *local]))
