"""Whether a backup contains transactions committed after a time: its own time does not tell. Pure.

A backup is begun some time before its snapshot, and clocks are set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.restore.boundaries import Scanned
from zsnapdb.planning.restore.targets import AtTime, Target


def newest_in_backup(
    first: RouteFile,
    start: int,
    scanned: Iterable[Scanned],
    files: Sequence[RouteFile],
    snapshot_by: datetime | None = None,
) -> datetime | None:
    """Return when the last transaction that a backup contains was committed; None if the archive does not tell.

    The backup is at the offset `start` of the binlog `first`, whose transactions are `scanned`. Without a transaction
    before it there, the archived files before that binlog tell (`files` are all files). A time that a session may have
    set is not later than the snapshot, which was made by `snapshot_by`.
    """
    newest = None
    for transaction in scanned:
        if transaction.end > start:
            break
        newest = transaction.between[1] if transaction.between is not None else transaction.committed
        if snapshot_by is not None and not transaction.is_exact:
            newest = min(newest, snapshot_by)
    if newest is not None:
        return newest
    following = first
    for file in sorted(files, key=lambda file: file.number, reverse=True):
        if file.incarnation != first.incarnation or file.number >= following.number:
            continue
        if following.gap is not None or file.number != following.number - 1:
            return None
        if file.last_commit is not None:
            return commit_time(file.last_commit)
        following = file
    return None


def is_past(target: Target, newest: datetime | None, snapshot_by: datetime) -> bool:
    """Whether a backup may contain a transaction committed after the target time.

    `newest` is the commit time of the last transaction in the backup. If it is not known (None), the backup may contain
    what was committed until its snapshot, which was made by `snapshot_by` by the clock of that time.
    """
    return isinstance(target, AtTime) and (snapshot_by if newest is None else newest) > target.moment
