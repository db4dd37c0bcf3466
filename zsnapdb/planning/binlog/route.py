"""Which archived binlogs continue a backup, and what ends them. Pure.

Restore, status, prune, clones and rescues all use `follow`, so a restore reaches what status promises. A route never
crosses a gap and never leads into another history. Where the archive does not prove that a file continues the reached
state, the route ends and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zsnapdb.gtid import GtidPosition, Gtids, GtidSet, contains, joined
from zsnapdb.planning.binlog.archive import is_some, missing_between, same_gtids
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
from zsnapdb.planning.binlog.takeover import begins_at, failback, takeover
from zsnapdb.planning.family import family

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

_MICROSECONDS = 1_000_000
_Identify = Callable[["RouteFile"], Hashable]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NO_ARCHIVE = RouteEnd(EndKind.NO_ARCHIVE, "no binlogs are archived")
NOT_ARCHIVED = RouteEnd(EndKind.NOT_ARCHIVED, "no archived binlog holds its position")
NEWEST = RouteEnd(EndKind.NEWEST, "nothing newer is archived")
_AMBIGUOUS = RouteEnd(
    EndKind.AMBIGUOUS, "the server's history was reset while the backup was made, and two binlogs fit its position"
)


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
    begin = _begin(point, files, histories, state) if files or state.unreadable else NO_ARCHIVE
    if isinstance(begin, RouteEnd):
        return Route(point, (), 0, True, point.taken, point.gtids, begin)
    visited: list[RouteFile] = []
    reached: Gtids | None = point.gtids
    step: int | RouteEnd = begin.at
    while not isinstance(step, RouteEnd):
        file = files[step]
        visited.append(file)
        reached = None if point.gtids is None else joined(reached, file.gtids)
        step = _next(files, histories, step, reached, state)
    times = [point.taken, *(file.last_commit for file in visited if file.last_commit is not None)]
    complete = complete_until(visited, step, state.complete)
    to = max(times if complete is None else [*times, complete])
    return Route(point, tuple(visited), begin.offset, begin.is_exact, to, reached, step)


def missing_before(before: RouteFile, file: RouteFile) -> str | None:
    """Return in words what is missing between two neighbours of one incarnation; None if nothing is missing."""
    if file.gap is not None:
        return file.gap
    if file.is_anonymous and not (before.is_rotated and file.number == before.number + 1):
        return missing_between(before, file.number, None)
    return missing_between(before, file.number, file.previous)


@dataclass(frozen=True)
class _Begin:
    """The place of the file with which a route begins, and the offset in it."""

    at: int
    offset: int
    is_exact: bool


def _begin(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], state: ArchiveState
) -> _Begin | RouteEnd:
    """Return where a backup's position is.

    File and offset identify it within the history of the backup's server; GTIDs identify it in any history. If the
    archive has several histories of that server, its clock chooses between them, because the same names and GTIDs come
    again after a reset: files that the server began after the snapshot, and files of a history that the server had left
    before the backup was begun, are excluded. If it has only one history of that server, the clock excludes none of
    its files that fits by GTIDs.
    """
    older = list(_begun_before(point, files, histories, _identity))
    only = () if state.has_lost_history else _only_history(point, files, histories)
    fitting = [at for at in older if _is_at_coordinates(files[at], point)] or [
        at for at in only if _is_at_coordinates(files[at], point) and _is_at_gtids(files[at], point, files[at])
    ]
    if fitting:
        first = files[fitting[0]]
        others = [files[at] for at in fitting[1:] if files[at].created != first.created]
        if others and first.created * _MICROSECONDS > point.taken:
            return _AMBIGUOUS
        offset = point.coordinates.offset if point.coordinates is not None else first.start
        return _Begin(fitting[0], max(offset, first.start), True)
    by_gtids = next((at for at in older if _holds(files, histories, at, point)), None)
    if by_gtids is None:
        by_gtids = next((at for at in only if _begins_at(files, at, point)), None)
    if by_gtids is None:
        return _before_rename(point, files, histories) or _damage_at(point, state) or NOT_ARCHIVED
    return _Begin(by_gtids, files[by_gtids].start, same_gtids(point.gtids, files[by_gtids].previous))


def _begun_before(
    point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History], identity: _Identify
) -> Iterator[int]:
    """Yield the places of the files that the server had begun when the backup was made, newest first."""
    present = _not_left(files, histories, point.taken, identity)
    gone = {identity(files[at]) for history in histories if history not in present for at in history.places}
    for history in reversed(present):
        for at in reversed(history.places):
            # A later history may begin with files of a history that the server had left before the backup was begun.
            if files[at].created * _MICROSECONDS <= point.before and identity(files[at]) not in gone:
                yield at


def _before_rename(point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History]) -> _Begin | None:
    """Return where the position is if the server's binlogs were renamed after the backup; None if they were not.

    Renamed files are archived again, in a new history. The server has not left the old history by that.
    """
    older = _begun_before(point, files, histories, _identity_without_base)
    at = next((at for at in older if _is_at_coordinates(files[at], point)), None)
    if at is None or point.coordinates is None:
        return None
    return _Begin(at, max(point.coordinates.offset, files[at].start), True)


def _damage_at(point: BackupPoint, state: ArchiveState) -> RouteEnd | None:
    """Return the end of a route whose backup is in a binlog that cannot be read; None if no such binlog is known."""
    for place in reversed(state.unreadable):
        if place.name is None or (point.coordinates is not None and place.name == point.coordinates.file):
            what = place.name or "a history of the archive"
            return RouteEnd(EndKind.UNREADABLE, f"{what}, which may hold its position, cannot be read: {place.reason}")
    return None


def _only_history(point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[History]) -> Sequence[int]:
    """Return the places of the only history of the backup's server, newest first; none if the server was ever reset.

    A history whose first file has number 1 and was begun after the snapshot counts as the result of a reset.
    """
    own = [history for history in histories if files[history.low].server == point.server]
    if len(own) != 1 or point.gtids is None:
        return ()
    first = files[own[0].low]
    if first.number == 1 and first.created * _MICROSECONDS > point.before:
        return ()
    return range(own[0].high - 1, own[0].low - 1, -1)


def _begins_at(files: Sequence[RouteFile], at: int, point: BackupPoint) -> bool:
    """Whether a file begins exactly at the backup's GTIDs."""
    file = files[at]
    rest = [other for other in files[at:] if other.incarnation == file.incarnation]
    return not file.is_anonymous and point.gtids is not None and begins_at(rest, point.gtids)


def _holds(files: Sequence[RouteFile], histories: Sequence[History], at: int, point: BackupPoint) -> bool:
    """Whether this file and the files of its history after it contain everything after the backup, by GTIDs alone.

    The file alone proves it. Otherwise the whole history does, if each of the backup's GTIDs is known to stand for one
    transaction only: a server with several histories may have given a number twice.
    """
    file = files[at]
    if isinstance(point.gtids, GtidPosition):
        return _begins_at(files, at, point)
    history = next(history for history in histories if at in history.places)
    if _is_at_gtids(file, point, file):
        return True
    servers = [files[other.low].server for other in histories]
    repeated = {server for server in servers if servers.count(server) > 1}
    before = files[history.low].previous
    if point.gtids is None or not isinstance(before, GtidSet):
        return False
    doubtful = {name: part for name, part in point.gtids.intervals.items() if name.partition(":")[0] in repeated}
    return before.contains(GtidSet(doubtful)) and _is_at_gtids(file, point, files[history.high - 1])


def _not_left(
    files: Sequence[RouteFile], histories: Sequence[History], taken: int, identity: _Identify
) -> list[History]:
    """Return the histories that their servers had not yet left at a time (microseconds UTC)."""
    left: set[History] = set()
    earlier: dict[str, list[History]] = {}
    for history in histories:
        first = files[history.low]
        before = earlier.setdefault(first.server, [])
        if before:
            known = {identity(files[at]) for other in before for at in other.places}
            begun = max(files[at].created for other in before for at in other.places)
            # After a server was set back, its first files may be older files, which other histories may lack.
            # Only later files are new.
            own = next(
                (at for at in history.places if identity(files[at]) not in known and files[at].created >= begun), None
            )
            if own is not None and files[own].created * _MICROSECONDS <= taken:
                left.update(before)
        before.append(history)
    return [history for history in histories if history not in left]


def _identity(file: RouteFile) -> tuple[str, int, int, str]:
    """Return what tells a file from other files of its server, also if one of them was cut."""
    return file.name, *_identity_without_base(file)


def _identity_without_base(file: RouteFile) -> tuple[int, int, str]:
    """Return the same, which stays when the file gets another base name."""
    return file.number, file.created, file.fingerprint


def _is_at_coordinates(file: RouteFile, point: BackupPoint) -> bool:
    """Whether the position can be in this file by its name and offset, and its GTIDs do not contradict."""
    where = point.coordinates
    if where is None or (file.name, file.server) != (where.file, point.server) or where.offset > file.end:
        return False
    if point.gtids is None or file.previous is None or file.reached is None:
        return True
    # A server of MySQL may have GTIDs that are in no binlog (gtid_purged).
    return contains(point.gtids, file.previous) and (
        family(point.flavour).gtids_are_sets or contains(file.reached, point.gtids)
    )


def _is_at_gtids(file: RouteFile, point: BackupPoint, last: RouteFile) -> bool:
    """Whether a file begins at the backup's GTIDs or before them, and the end of the file `last` reaches them."""
    if point.gtids is None or not is_some(point.gtids) or file.previous is None or file.is_anonymous:
        return False
    return contains(point.gtids, file.previous) and last.reached is not None and contains(last.reached, point.gtids)


def _next(
    files: Sequence[RouteFile], histories: Sequence[History], at: int, reached: Gtids | None, state: ArchiveState
) -> int | RouteEnd:
    """Return the place of the next file, or why there is no next file.

    If the server was set back to the end of this file and then wrote another history, the newer history counts.
    """
    here = files[at]
    later = [history for history in histories if history.low > at]
    newer = _newer_history(files, at, later)
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


def _newer_history(files: Sequence[RouteFile], at: int, later: Sequence[History]) -> _NewerHistory:
    here, place, end = files[at], None, None
    for low in (history.low for history in later):
        other = files[low]
        if other.server != here.server:
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
