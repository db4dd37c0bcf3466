"""Which archived binlogs continue a backup, and what ends them. Pure.

Restore, status, prune, clones and rescues all use `follow`, so a restore reaches what status promises. A route never
crosses a gap and never leads into another history. Where the archive does not prove that a file continues the reached
state, the route ends and says why.
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

    The first file is replayed from offset `start`. If `is_start_exact` is False, transactions that the backup already
    contains may follow there; their GTIDs identify them. All files are replayed to their end, which is the end of a
    transaction. Afterwards the server contains `reached`. `to` is the latest time to which a restore is possible
    (microseconds UTC): the last commit, or a later time until which the archive is known to be complete.
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
        """Whether no archived file continues the backup."""
        return not self.files


def commit_time(microseconds: int) -> datetime:
    """Return a commit time (microseconds UTC) as a moment."""
    return _EPOCH + timedelta(microseconds=microseconds)


def follow(point: BackupPoint, files: Sequence[RouteFile], state: ArchiveState = NOTHING_KNOWN) -> Route:
    """Return the route from a backup through the archived files (incarnations, oldest first, and their files in order).

    The route stays in the backup's own history. It leads on into a newer history of the same server that begins where
    the older history ended, and into the history of a server that took over and provably contains everything reached.
    What cannot be read ends the route, unless GTIDs prove that nothing is missing there.
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
    """Return in words what is missing between two neighbours of one incarnation; None if nothing is missing."""
    if file.gap is not None:
        return file.gap
    if file.is_anonymous and not (before.is_rotated and file.number == before.number + 1):
        return missing_between(before, file.number, None)
    return missing_between(before, file.number, file.previous)


def _names_of(files: Sequence[RouteFile], histories: Sequence[History]) -> Mapping[str, frozenset[str]]:
    """Return the names that the server had in each incarnation: a server of MariaDB may get another server_id."""
    return {files[one.low].incarnation: frozenset(files[at].server for at in one.places) for one in histories}


def _next(
    files: Sequence[RouteFile],
    histories: Sequence[History],
    at: int,
    reached: Gtids | None,
    state: ArchiveState,
    names: Collection[str],
) -> int | RouteEnd:
    """Return the place of the next file, or why there is no next file. `names` are those of the file's server.

    If the server was set back to the end of this file and then wrote another history, the newer history counts.
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
    """How later incarnations of the same server relate to a file.

    `place` is the first file of the incarnation that continues the file. No file from `limit` on belongs to this
    history. `end` says why no incarnation continues the file.
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
    """Whether a state contains another state. Equal sequence numbers must come from the same server."""
    if isinstance(outer, GtidPosition) and isinstance(inner, GtidPosition):
        pairs = [(outer.heads.get(domain), head) for domain, head in inner.heads.items()]
        return all(mine is not None and (mine[1] > head[1] or mine == head) for mine, head in pairs)
    return contains(outer, inner)
