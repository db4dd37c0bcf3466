"""Which archived binlogs are no longer needed, because no backup that stays can be rolled forward with them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.planning.binlog.route import BackupPoint, RouteFile, follow

MARGIN = 86_400 * 1_000_000
"""Microseconds by which a binlog must be older than every backup that stays.

Commit times and backup ids come from clocks that may differ.
"""


@dataclass(frozen=True)
class BinlogDecision:
    """Whether an archived file is removed, and why. `at` is the place of the file in the list of files."""

    at: int
    incarnation: str
    name: str
    remove: bool
    reason: str


def decide(points: Sequence[BackupPoint], oldest: int | None, files: Sequence[RouteFile]) -> tuple[BinlogDecision, ...]:
    """Return the decision about each archived file (incarnations and their files in order).

    `points` are the positions of the backups that stay. `oldest` is when the oldest backup that stays was begun, the
    unreadable backups included (microseconds UTC; None if no backup stays). A file is removed only if no route from a
    backup contains it, if it ended well before the oldest backup, and if the archive of its server does not continue
    from it.
    """
    used: dict[tuple[str, str], str] = {}
    for point in sorted(points, key=lambda point: point.taken):
        for file in follow(point, files).files:
            used.setdefault((file.incarnation, file.name), point.backup_id)
    newest = {file.server: at for at, file in enumerate(files)}
    return tuple(
        _one(at, file, used.get((file.incarnation, file.name)), oldest, newest[file.server] == at)
        for at, file in enumerate(files)
    )


def _one(at: int, file: RouteFile, user: str | None, oldest: int | None, is_newest: bool) -> BinlogDecision:
    ended = max(file.created * 1_000_000, file.last_commit or 0)
    if user is not None:
        stays = f"rolls {user} forward"
    elif oldest is None:
        stays = "no backup stays, so nothing says how old it may be"
    elif is_newest:
        stays = "the archive continues from it"
    elif ended > oldest - MARGIN:
        stays = "less than a day older than the oldest backup that stays"
    else:
        return BinlogDecision(at, file.incarnation, file.name, True, "older than every backup that stays")
    return BinlogDecision(at, file.incarnation, file.name, False, stays)
