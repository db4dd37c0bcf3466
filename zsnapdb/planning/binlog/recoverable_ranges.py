"""Finds the recoverable time ranges, the backups from which they start, and the gaps between the ranges. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.gtid import GtidSet, contains
from zsnapdb.planning.binlog.failover_history import has_heads_of
from zsnapdb.planning.binlog.route import (
    NOTHING_KNOWN,
    ArchiveState,
    BackupPoint,
    EndKind,
    Route,
    RouteEnd,
    RouteFile,
    RouteMap,
)
from zsnapdb.planning.binlog.route_elements import History, histories_of
from zsnapdb.planning.binlog.route_start import held_by
from zsnapdb.planning.server_family import family

_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Range:
    """A time range (microseconds UTC) in which every transaction can be recovered from a backup.

    The field `ends` contains the reason why the range ends.
    """

    start: int
    end: int
    backups: tuple[str, ...]
    ends: RouteEnd


@dataclass(frozen=True)
class Gap:
    """A time range in which nothing can be recovered, and the reason."""

    start: int
    end: int
    reason: RouteEnd


@dataclass(frozen=True)
class Window:
    """The recoverable ranges in order, the gaps between them, and the route of each backup, oldest first.

    If the newest archived state cannot be recovered before the next backup is made, `unprotected` contains the reason.
    Otherwise, it is None.
    """

    ranges: tuple[Range, ...]
    gaps: tuple[Gap, ...]
    routes: tuple[Route, ...]
    unprotected: RouteEnd | None = None


_NO_BACKUP = RouteEnd(EndKind.NO_BACKUP, "there is no backup of the server")


def leading(points: Sequence[BackupPoint], route_of: Callable[[BackupPoint], Route]) -> Route:
    """Return the route for restores to times after the newest backup.

    The argument `points` contains the backups, oldest first, and is not empty. Normally, the function returns the route
    of the newest backup. If the archive does not contain the position of the newest backup, the function returns the
    route of the previous backup. It does so only if both backups certainly belong to the same history. Otherwise only
    the newest backup itself can be restored.
    """
    alone = route_of(points[-1])
    for index in range(len(points) - 1, -1, -1):
        route = route_of(points[index])
        if not route.is_empty and all(_is_on(route, other) for other in points[index + 1 :]):
            return route
        if not route.is_empty or route.end.kind is not EndKind.NOT_ARCHIVED:
            break
    return alone


def newer_beyond(
    route: Route,
    files: Sequence[RouteFile],
    points: Sequence[BackupPoint],
    route_of: Callable[[BackupPoint], Route],
) -> RouteEnd | None:
    """Return why the newest archived state may be beyond the end of a route; None if it is not.

    The argument `points` contains the backups up to the route's backup, oldest first. A backup whose position is not
    archived is the newest state only if positions or GTIDs prove that all archived transactions are older. Commit times
    alone do not prove this.
    """
    if route.end.kind in (EndKind.NEWEST, EndKind.NO_ARCHIVE):
        return None
    if route.end.kind is not EndKind.NOT_ARCHIVED:
        return route.end
    first = held_by(route.point, files)
    later = files[first:]
    if any(_is_beyond(file, route.point) for file in later):
        return route.end
    if not later:
        return None
    begun = max((found.places[0][0] for found in map(route_of, points) if found.places), default=None)
    histories = list(histories_of(files))
    for history in histories:
        for at in (at for at in history.places if at >= first):
            if not _is_before(files, at, history, histories, route.point, begun):
                reason = f"{route.end.reason}, and only times show that {files[at].name} is older than the backup"
                return RouteEnd(EndKind.AMBIGUOUS, reason)
    return None


def _is_beyond(file: RouteFile, point: BackupPoint) -> bool:
    """Return whether the file seems to contain a transaction that was committed after the backup.

    The file's creation time is known only to the second.
    """
    if file.last_commit is not None and file.last_commit > point.before:
        return True
    if point.gtids is None or file.previous is None:
        return False
    return (file.created + 1) * _MICROSECONDS > point.before and not contains(point.gtids, file.previous)


def _is_before(
    files: Sequence[RouteFile],
    at: int,
    history: History,
    histories: Sequence[History],
    point: BackupPoint,
    begun: int | None,
) -> bool:
    """Return whether a file certainly contains no transaction after the backup, without using a clock.

    The routes of earlier backups begin in archived files. The argument `begun` is the index of the newest of these
    files; None if there is no such file. So that file's history, and all earlier histories, began before the backup. In
    these histories, the binlog numbers or the GTIDs show whether the file is older. They prove nothing in a later
    history: the server may have been reset, or returned to an earlier state, after the backup.
    """
    if begun is not None and history.high <= begun:
        return True
    file, where = files[at], point.coordinates
    is_own = file.server == point.server and where is not None
    if is_own and where is not None:
        base, _, number = where.file.rpartition(".")
        is_earlier = file.name.rpartition(".")[0] == base and (
            file.number < int(number) or (file.number == int(number) and file.end <= where.offset)
        )
        if begun is not None and begun in history.places:
            return is_earlier
        servers = [files[other.low].server for other in histories]
        return is_earlier and servers.count(file.server) == 1 and files[history.low].number > 1
    if point.gtids is None or file.reached is None or file.is_anonymous:
        return False
    is_set = isinstance(point.gtids, GtidSet)
    return contains(point.gtids, file.reached) if is_set else has_heads_of(point.gtids, file.reached)


def _is_on(route: Route, point: BackupPoint) -> bool:
    """Return whether a route from an older backup certainly passes the position of this backup.

    This position is not in the archive. If the route runs through binlogs of the backup's own server, it has probably
    left the backup's history: a server that was returned to an earlier state reuses its GTIDs.

    If the route runs only through binlogs of another server, the GTID sets show whether it passes the position. But
    they prove nothing if the route ends where that server was reset or returned to an earlier state.
    """
    if route.to < point.taken or route.reached is None or point.gtids is None:
        return False
    is_own = any(file.server == point.server for file in route.files)
    if is_own or route.end.kind in (EndKind.RESET, EndKind.SET_BACK):
        return False
    return family(point.flavour).gtids_are_sets and contains(route.reached, point.gtids)


def window(points: Sequence[BackupPoint], files: Sequence[RouteFile], state: ArchiveState = NOTHING_KNOWN) -> Window:
    """Return the recoverable ranges of the backups (oldest first) and archived files (incarnations in order).

    A time is in a range if and only if a restore to this time can be planned.
    """
    ordered = list(points)
    known = RouteMap(files, state)
    newest_first = {point.backup_id: known.follow(point) for point in reversed(ordered)}
    routes = dict(reversed(newest_first.items()))
    ranges: list[Range] = []
    gaps: list[Gap] = []
    for index, point in enumerate(ordered):
        leads = leading(ordered[: index + 1], lambda point: routes[point.backup_id])
        name, start, end = point.backup_id, point.taken, leads.to
        if ranges and start <= ranges[-1].end:
            ranges[-1] = replace(ranges[-1], end=end, backups=(*ranges[-1].backups, name), ends=leads.end)
            continue
        if ranges:
            gaps.append(Gap(ranges[-1].end, start, ranges[-1].ends))
        ranges.append(Range(start, end, (name,), leads.end))
    unprotected = _NO_BACKUP if files or state.unreadable else None
    if ordered:
        unprotected = newer_beyond(leads, files, ordered, lambda point: routes[point.backup_id])
    return Window(tuple(ranges), tuple(gaps), tuple(routes.values()), unprotected)
