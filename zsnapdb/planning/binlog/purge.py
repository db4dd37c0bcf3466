"""Decides which binlogs may be removed. They must be archived, verified, old enough, and read by all replicas.

Pure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from zsnapdb.planning.binlog.archive import KnownArchived, ServerBinlog
from zsnapdb.planning.binlog.route import BackupPoint, Route, RouteFile, RouteMap
from zsnapdb.planning.clock_guard import RemovalTime

_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True)
class DumpConnection:
    """A connection that sends binlogs to a replica, and whether it has sent everything."""

    replica: str
    has_sent_all: bool


@dataclass(frozen=True)
class Expiry:
    """The server's own rules for removing binlogs.

    `seconds` is the maximum age of a binlog, and `size` is the maximum total size of the binlogs in bytes. 0 means no
    limit.
    """

    seconds: float
    size: int = 0


@dataclass(frozen=True)
class PurgePlan:
    """The plan of a purge: the binlogs to remove (oldest first), why the next binlog is kept, and warnings.

    `unread` contains the binlogs whose archived copies must be read before the removal.
    """

    names: tuple[str, ...]
    stays: str
    warnings: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def ages_of(written: Sequence[float], time: RemovalTime) -> list[float]:
    """Return the minimum number of seconds since the last write to each binlog, oldest binlog first.

    `written` contains the times of the last writes (seconds since 1970), which may come from a wrong clock. If a time
    is earlier than that of the previous binlog, the time of the previous binlog is used. A time in the future, or a
    time that is too early because the clock was behind, is replaced by the time of the next binlog.
    """
    # The server's account can set any file time, even a time outside of the calendar.
    written = [min(max(at, 0.0), _LATEST) for at in written]
    times, following = list(written), math.inf
    moments = [datetime.fromtimestamp(at, UTC) for at in written]
    is_future = [time.is_from_future(moment) for moment in moments]
    past = [-math.inf if ahead else at for at, ahead in zip(written, is_future, strict=True)]
    greatest = [-math.inf, *accumulate(past, max)]
    for at in reversed(range(len(times))):
        if is_future[at]:
            times[at] = min(times[at], following)
        elif time.is_unsure(moments[at]) or times[at] < greatest[at]:
            times[at] = max(times[at], min(following, time.latest.timestamp()))
        following = times[at]
    return [time.at.timestamp() - latest for latest in accumulate(times, max)]


def plan_purge(
    local: Sequence[ServerBinlog],
    ages: Sequence[float],
    kept: Sequence[KnownArchived],
    dumps: Sequence[DumpConnection],
    expiry: Expiry,
    *,
    keep: float,
    replicas: int,
    damaged: Mapping[str, str] | None = None,
) -> PurgePlan:
    """Return the plan of a purge, with the binlogs that may be removed.

    - `ages`: the seconds since the last write to each binlog in `local`
    - `kept`: the archived files in the server's current incarnation
    - `keep`: the minimum age in seconds
    - `replicas`: the number of replicas that must be connected; without a connection, the progress of a replica is
      unknown
    - `damaged`: descriptions of the damage to archived copies, by binlog
    """
    warnings = expiry_warnings(expiry, keep)
    behind = [dump.replica for dump in dumps if not dump.has_sent_all]
    if len(dumps) < replicas:
        return PurgePlan(
            (),
            f"only {len(dumps)} of {replicas} replicas are connected; it is unknown what the others still need",
            warnings,
        )
    if behind:
        return PurgePlan((), f"replica {behind[0]} has not fetched everything yet", warnings)
    archived = {(file.name, file.fingerprint, file.size) for file in kept if file.is_rotated}
    names: list[str] = []
    for file, age in zip(local[:-1], ages, strict=False):
        if (file.name, file.fingerprint, file.size) not in archived:
            return PurgePlan(tuple(names), f"{file.name} is not completely archived", warnings)
        if file.name in (damaged or {}):
            return PurgePlan(
                tuple(names), f"the archived copy of {file.name} is damaged: {(damaged or {})[file.name]}", warnings
            )
        if age < keep:
            return PurgePlan(
                tuple(names), f"{file.name} was written {age:.0f} s ago; binlogs are kept for {keep:.0f} s", warnings
            )
        names.append(file.name)
    return PurgePlan(tuple(names), "the server writes to the next binlog" if local else "there is no binlog", warnings)


def expiry_warnings(expiry: Expiry, keep: float) -> tuple[str, ...]:
    """Return warnings if the server itself removes binlogs, because it may remove binlogs that are not archived yet."""
    warnings = []
    if expiry.seconds:
        also = "; binlog.keep is longer and has no effect" if expiry.seconds <= keep else ""
        warnings.append(f"the server itself removes binlogs after {expiry.seconds:.0f} s, archived or not{also}")
    if expiry.size:
        warnings.append(
            f"the server itself removes the oldest binlogs beyond {expiry.size} bytes (max_binlog_total_size), archived"
            " or not"
        )
    return tuple(warnings)


def batches(names: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Return the names in batches of at most `count`, in order."""
    return tuple(tuple(names[at : at + count]) for at in range(0, len(names), count))


MARGIN = 86_400 * 1_000_000
"""A binlog is removed only if it is at least this many microseconds older than every retained backup.

Commit times and backup ids come from different clocks, which may disagree.
"""


@dataclass(frozen=True, slots=True)
class BinlogDecision:
    """The decision whether an archived binlog is removed, with the reason.

    `at` is the index of the file in the list of files.
    """

    at: int
    incarnation: str
    name: str
    remove: bool
    reason: str


@dataclass(frozen=True)
class RetainedBackups:
    """The readable backups of a server, oldest first, and the ids of the retained backups.

    `kept` also contains the ids of unreadable retained backups. `order` contains the ids of all backups, oldest first,
    but may lack the ids of unreadable backups. `foreign` contains backups that this host does not know. Only the
    binlogs on their routes are kept for them.
    """

    points: Sequence[BackupPoint]
    kept: Collection[str]
    order: Sequence[str] = ()
    foreign: Collection[str] = ()


def decide(backups: RetainedBackups, oldest: int | None, files: Sequence[RouteFile]) -> tuple[BinlogDecision, ...]:
    """Decide for each archived binlog whether it is removed, and give the reason.

    `files` contains the incarnations and their files in order.

    `oldest` is the start (microseconds UTC) of the oldest retained backup, which may be unreadable. If `oldest` is
    None, no backup is retained, and all files are kept. A file is kept in these cases:

    - The route from a retained backup contains the file, or the archiver continues the archive at the file.
    - The file is at or after the first file of one of these routes, or a retained backup without a known position may
      need the file. Foreign backups are not considered here.
    - The file ended less than a day before the oldest backup.
    """
    known = RouteMap(files)
    newest_first = [known.follow(point) for point in reversed(backups.points)]
    routes = {route.point.backup_id: route for route in reversed(newest_first)}
    used = _users([route for name, route in routes.items() if name in backups.kept], len(files))
    needed, by = _first_needed(backups, routes)
    newest = {file.server: at for at, file in enumerate(files)}
    decisions = []
    for at, file in enumerate(files):
        stays = used[at] and f"rolls {used[at]} forward"
        if stays is None and at >= needed:
            stays = f"{by} may need it"
        decisions.append(_one(at, file, stays, oldest, newest[file.server] == at))
    return tuple(decisions)


def _users(routes: Sequence[Route], count: int) -> list[str | None]:
    """Return, for each file, the oldest backup whose route contains the file; None if no route contains it."""
    users: list[str | None] = [None] * count
    for route in routes:
        for part in route.places:
            for at in part:
                if users[at] is not None:
                    # If two routes share a file in one of their parts, they also share all later files of this part.
                    break
                users[at] = route.point.backup_id
    return users


def _first_needed(backups: RetainedBackups, routes: Mapping[str, Route]) -> tuple[int, str]:
    """Return the index of the first file that a retained backup may need, and the id of that backup.

    A backup with an unknown position was made after the earlier backups in `order`. Therefore it needs no file that is
    older than all files of the earlier backups. If there is no earlier backup, every file may be needed.
    """
    starts = {name: route.places[0][0] for name, route in routes.items() if route.places}
    place = {name: at for at, name in enumerate(backups.order)}
    first_before = list(accumulate((starts.get(name, sys.maxsize) for name in backups.order), min))
    needs = [(sys.maxsize, "")]
    for name in sorted(name for name in backups.kept if name not in backups.foreign):
        before = first_before[place[name]] if name in place else sys.maxsize
        needs.append((starts.get(name, before if before < sys.maxsize else 0), name))
    return min(needs)


def _one(at: int, file: RouteFile, stays: str | None, oldest: int | None, is_newest: bool) -> BinlogDecision:
    ended = max(file.created * 1_000_000, file.last_commit or 0)
    if stays is not None:
        pass
    elif oldest is None:
        stays = "no backup stays, so its allowed age is not known"
    elif is_newest:
        stays = "the archive continues from it"
    elif ended > oldest - MARGIN:
        stays = "less than a day older than the oldest backup that stays"
    else:
        return BinlogDecision(at, file.incarnation, file.name, True, "older than every backup that stays")
    return BinlogDecision(at, file.incarnation, file.name, False, stays)
