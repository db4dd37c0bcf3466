"""Which archived binlogs are of no use any more: those that no backup which stays can be rolled forward with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.planning.binlog.route import BackupPoint, RouteFile, follow

MARGIN = 86_400 * 1_000_000
"""Microseconds by which a binlog must be older than every backup that stays: commit times and backup ids come from clocks."""


@dataclass(frozen=True)
class BinlogDecision:
    """Whether an archived file goes, and why. `at` is its place among the files that were decided about."""

    at: int
    incarnation: str
    name: str
    remove: bool
    reason: str


def decide(points: Sequence[BackupPoint], oldest: int | None, files: Sequence[RouteFile]) -> tuple[BinlogDecision, ...]:
    """Return what becomes of each archived file (incarnations and their files in order).

    `points`: where the backups stand that stay; `oldest`: when the oldest of all that stay was begun, those that cannot
    be read included (microseconds UTC; None if none stays). A file goes only if no route from a backup leads over it,
    if it ended well before the oldest of them, and if it is not the one from which archiving its server goes on.
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
        stays = "no backup stays that could say how old it may be"
    elif is_newest:
        stays = "archiving goes on from it"
    elif ended > oldest - MARGIN:
        stays = "not a day older than the oldest backup that stays"
    else:
        return BinlogDecision(at, file.incarnation, file.name, True, "older than every backup that stays")
    return BinlogDecision(at, file.incarnation, file.name, False, stays)
