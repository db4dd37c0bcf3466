"""The route of archived binlogs that continues a backup, and the reason for its end. Pure.

Restore, status, prune, clones and rescues all use `follow`, so a restore reaches the points that status reports. A
route never crosses a gap and never enters another history. If the archive does not prove that a file continues the
reached state, the route ends with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zsnapdb.base.gtid import GtidPosition, Gtids, contains, joined
from zsnapdb.planning.binlog.archive import is_some, missing_between, same_gtids
from zsnapdb.planning.binlog.begin import NO_ARCHIVE, NOT_ARCHIVED, begin_of
from zsnapdb.planning.binlog.completeness import complete_until
from zsnapdb.planning.binlog.history import (
    NOTHING_KNOWN,
    ArchiveState,
    BackupPoint,
    EndKind,
    History,
    RouteEnd,
    RouteFile,
    Unreadable,
    histories_of,
)
from zsnapdb.planning.binlog.takeover import failback, takeover

__all__ = [
    "NEWEST",
    "NOTHING_KNOWN",
    "NOT_ARCHIVED",
    "NO_ARCHIVE",
    "ArchiveState",
    "BackupPoint",
    "EndKind",
    "Route",
    "RouteEnd",
    "RouteFile",
    "Unreadable",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NEWEST = RouteEnd(EndKind.NEWEST, "nothing newer is archived")


@dataclass(frozen=True)
class Route:
    """The archived files that continue a backup, in order, and why the route ends.

    - `start`: the offset in the first file at which the replay starts
    - `is_start_exact`: if False, the file may contain transactions of the backup after `start`; GTIDs identify them
    - `reached`: the GTIDs of the server after the replay
    - `to`: the latest time that a restore can reach (microseconds UTC): the last commit, or a later time up to which
      the archive is complete

    All files are replayed to their end, which is the end of a transaction.
    """

    point: BackupPoint
    files: tuple[RouteFile, ...]
    start: int
    is_start_exact: bool
    to: int
    reached: Gtids | None
    end: RouteEnd

    @property
    def is_empty(self) -> bool:
        return not self.files


def commit_time(microseconds: int) -> datetime:
    """Return a commit time (microseconds UTC) as a datetime."""
    return _EPOCH + timedelta(microseconds=microseconds)


def follow(point: BackupPoint, files: Sequence[RouteFile], state: ArchiveState = NOTHING_KNOWN) -> Route:
    """Return the route from a backup through the archived files (incarnations, oldest first, and their files in order).

    The route stays in the backup's own history. It continues in a newer history of the same server that starts where
    the old one ended. It also continues in the history of a new primary that provably contains everything reached.
    Unreadable data ends the route, unless GTIDs prove that no transaction is missing.
    """
    histories = tuple(histories_of(files))
    names = _names_of(files, histories)
    begin = begin_of(point, files, histories, state) if files or state.unreadable else NO_ARCHIVE
    if isinstance(begin, RouteEnd):
        return Route(point, (), 0, True, point.taken, point.gtids, begin)
    visited: list[RouteFile] = []
    reached: Gtids | None = point.gtids
    step: int | RouteEnd = begin.at
    while not isinstance(step, RouteEnd):
        file = files[step]
        visited.append(file)
        reached = None if point.gtids is None else joined(reached, file.gtids)
        step = _next(files, histories, step, reached, state, names[file.incarnation])
    times = [point.taken, *(state.until(file.last_commit) for file in visited if file.last_commit is not None)]
    complete = complete_until(visited, step, state.complete)
    to = max(times if complete is None else [*times, state.until(complete)])
    return Route(point, tuple(visited), begin.offset, begin.is_exact, to, reached, step)


def missing_before(before: RouteFile, file: RouteFile) -> str | None:
    """Return a description of the gap between two neighbours of one incarnation; None if there is no gap."""
    if file.gap is not None:
        return file.gap
    if file.is_anonymous and not (before.is_rotated and file.number == before.number + 1):
        return missing_between(before, file.number, None)
    return missing_between(before, file.number, file.previous)


def _names_of(files: Sequence[RouteFile], histories: Sequence[History]) -> Mapping[str, frozenset[str]]:
    """Return the identities of the server in each incarnation: the server_id of a MariaDB server may change."""
    return {files[one.low].incarnation: frozenset(files[at].server for at in one.places) for one in histories}


def _next(
    files: Sequence[RouteFile],
    histories: Sequence[History],
    at: int,
    reached: Gtids | None,
    state: ArchiveState,
    names: Collection[str],
) -> int | RouteEnd:
    """Return the index of the next file, or why there is none. `names` are the identities of the file's server.

    If the server was set back to the end of this file and then wrote another history, the newer history is used.
    """
    here = files[at]
    later = [history for history in histories if history.low > at]
    newer = _newer_history(files, at, later, names)
    if newer.place is not None:
        return newer.place
    following = files[at + 1] if at + 1 < len(files) and files[at + 1].incarnation == here.incarnation else None
    gap = state.damage_after(here, following)
    if following is not None:
        missing = missing_before(here, following)
        if missing is None:
            return at + 1
        gap = gap or RouteEnd(EndKind.GAP, f"before {following.name}: {missing}")
    later = [history for history in later if history.high <= newer.limit]
    other = takeover(files, at, later, reached)
    if isinstance(other, int):
        return other
    lost = state.lost_history_after(here)
    return gap or newer.end or other or failback(files, at, histories, reached) or lost or NEWEST


@dataclass(frozen=True)
class _NewerHistory:
    """The relation of later incarnations of the same server to a file.

    `place` is the index of the first file of the incarnation that continues the file. No file from `limit` on belongs
    to this history. `end` is the reason why no incarnation continues the file.
    """

    place: int | None
    limit: int
    end: RouteEnd | None


def _newer_history(
    files: Sequence[RouteFile], at: int, later: Sequence[History], names: Collection[str]
) -> _NewerHistory:
    here, place, end = files[at], None, None
    for low in (history.low for history in later):
        other = files[low]
        if other.server not in names:
            continue
        is_numbered = not (here.is_anonymous or other.is_anonymous)
        previous = other.previous if is_numbered else None
        if previous is None or here.reached is None or not is_some(previous):
            is_reset = other.number == 1 or (is_numbered and other.previous is not None)
            return _NewerHistory(place, low, _left(here, other, is_reset=is_reset))
        if here.is_rotated and other.gap is None and same_gtids(here.reached, previous):
            place = low
        elif same_gtids(here.reached, previous) or not _is_ahead(previous, here.reached):
            return _NewerHistory(place, low, _left(here, other, is_reset=False))
        else:
            missing = other.gap or missing_between(here, other.number, previous)
            end = end or RouteEnd(EndKind.GAP, f"before {other.name}: {missing}")
    return _NewerHistory(place, len(files), end)


def _left(here: RouteFile, first: RouteFile, *, is_reset: bool) -> RouteEnd:
    base, other = (file.name.rpartition(".")[0] for file in (here, first))
    if base != other:
        reason = f"the server's binlogs got other names ({other} instead of {base}): {first.name} begins a new history"
        return RouteEnd(EndKind.RESET, reason)
    if is_reset:
        return RouteEnd(EndKind.RESET, f"the server's binlogs were reset: {first.name} begins a new history")
    return RouteEnd(
        EndKind.SET_BACK, f"the server was set back or restored: {first.name} continues an earlier state of the server"
    )


def _is_ahead(outer: Gtids, inner: Gtids) -> bool:
    """Return whether a state contains another state. Equal sequence numbers must come from the same server."""
    if isinstance(outer, GtidPosition) and isinstance(inner, GtidPosition):
        pairs = [(outer.heads.get(domain), head) for domain, head in inner.heads.items()]
        return all(mine is not None and (mine[1] > head[1] or mine == head) for mine, head in pairs)
    return contains(outer, inner)
