"""Chooses backup and binlogs of a restore. Reads the transactions of the binlogs that decide where it stops."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from zsnapdb.base.errors import NotThere
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs, point_of, points_of
from zsnapdb.jobs.restore.transaction_reader import TransactionReader
from zsnapdb.jobs.restore.without_store import archive_of
from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.restore import contained, points
from zsnapdb.planning.restore.boundaries import Boundary, boundary_in, restore_point, start_in
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestorePoint
from zsnapdb.planning.restore.points import RestoreRoute
from zsnapdb.planning.restore.replays import replays
from zsnapdb.planning.restore.steps import Replay
from zsnapdb.planning.restore.targets import AtBackup, AtTime, Target
from zsnapdb.planning.restore.time_place import find_stop
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository


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
    newest = contained.newest_in_backup(first, start, reader.scan(first), files, snapshot_by)
    return contained.is_past(choice.target, newest, snapshot_by)


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
