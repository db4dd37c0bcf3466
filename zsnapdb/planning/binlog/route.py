"""Finds the route: the archived binlogs that continue a backup, and the reason why they end. Pure.

Restore, status, prune, clones and rescues all use `follow`. So a restore can reach every point that status reports. A
route never crosses a gap. If the archive does not prove that a file continues the reached state, the route ends before
this file. The route then contains the reason.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import overload

from zsnapdb.base.gtid import GtidPosition, Gtids, contains, joined
from zsnapdb.planning.binlog.archive import is_some, missing_between, same_gtids
from zsnapdb.planning.binlog.archive_times import complete_until
from zsnapdb.planning.binlog.failover_history import failback, second_writer, takeover
from zsnapdb.planning.binlog.route_elements import (
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
from zsnapdb.planning.binlog.route_start import NO_ARCHIVE, NOT_ARCHIVED, begin_of, heads_of

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
    "RouteFiles",
    "RouteMap",
    "Unreadable",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NEWEST = RouteEnd(EndKind.NEWEST, "nothing newer is archived")


class RouteFiles(Sequence[RouteFile]):
    """The files of a route, in order. The files are slices of the list of all archived files, which many routes share.

    The field `places` contains their indexes in that list. A RouteFiles object is equal to a tuple of the same files.
    """

    __slots__ = ("_ends", "_files", "places")

    def __init__(self, files: Sequence[RouteFile] = (), places: Sequence[range] = ()) -> None:
        self.places = tuple(places)
        self._files = files
        self._ends = list(accumulate(len(part) for part in self.places))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[RouteFile]:
        return (self._files[at] for part in self.places for at in part)

    @overload
    def __getitem__(self, at: int) -> RouteFile: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[RouteFile, ...]: ...
    def __getitem__(self, at: int | slice) -> RouteFile | tuple[RouteFile, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(len(self))))
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        part = bisect_right(self._ends, number)
        return self._files[self.places[part][number - self._ends[part]]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RouteFiles | tuple):
            return NotImplemented
        return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True)
class Route:
    """The archived files that continue a backup, in order, and the reason why there are no more.

    - `start`: the offset in the first file at which the replay starts
    - `is_start_exact`: if False, some transactions after `start` may already be in the backup; their GTIDs identify
      them
    - `reached`: the GTIDs of the server after the replay
    - `places`: the indexes of the files in the list of all archived files, as ranges
    - `to`: the latest time that a restore can reach (microseconds UTC): the last commit, or a later time up to which
      the archive is complete

    All files are replayed to their end, which is the end of a transaction.
    """

    point: BackupPoint
    files: Sequence[RouteFile]
    start: int
    is_start_exact: bool
    to: int
    reached: Gtids | None
    end: RouteEnd
    places: tuple[range, ...] = field(default=(), compare=False)

    @property
    def is_empty(self) -> bool:
        return not self.files


def commit_time(microseconds: int) -> datetime:
    """Return a commit time (microseconds UTC) as a datetime."""
    return _EPOCH + timedelta(microseconds=microseconds)


def follow(point: BackupPoint, files: Sequence[RouteFile], state: ArchiveState = NOTHING_KNOWN) -> Route:
    """Return the route from a backup through the archived files. Use one `RouteMap` for several backups."""
    return RouteMap(files, state).follow(point)


@dataclass(frozen=True)
class _Tail:
    """The transactions of consecutive files: their GTIDs, and the time of the last commit (microseconds UTC)."""

    gtids: Gtids | None
    last_commit: int | None

    @classmethod
    def of(cls, file: RouteFile, rest: _Tail | None) -> _Tail:
        """Return the transactions of a file and of later files."""
        if rest is None:
            return cls(file.gtids, file.last_commit)
        times = [time for time in (file.last_commit, rest.last_commit) if time is not None]
        return cls(joined(file.gtids, rest.gtids), max(times, default=None))


@dataclass(frozen=True)
class _Fork:
    """A file after which the route can continue in several ways.

    The GTIDs that a route has reached decide how the route continues.
    """

    newer: _NewerHistory
    gap: RouteEnd | None


class RouteMap:
    """The routes through archived files (incarnations, oldest first, and their files in order).

    Each file is examined only once for all backups, so computing all routes takes about as long as computing one route.
    Callers should follow the newest backup first.
    """

    def __init__(self, files: Sequence[RouteFile], state: ArchiveState = NOTHING_KNOWN) -> None:
        self._files, self._state = files, state
        self._histories = tuple(histories_of(files))
        # All identities of the server in each incarnation: a server_id can change (MariaDB).
        self._names = {
            files[one.low].incarnation: frozenset(files[at].server for at in one.places) for one in self._histories
        }
        self._heads = heads_of(files)
        self._run_ends: list[int] = []
        self._run_starts: dict[int, int] = {}
        self._ways: dict[int, int | _Fork] = {}
        self._tails: dict[int, _Tail] = {}
        self._tail_places: list[int] = []
        self._left: dict[int, tuple[Gtids | None, int | RouteEnd]] = {}

    def follow(self, point: BackupPoint) -> Route:
        """Return the route from a backup.

        The route starts in the backup's own history. It continues in a newer history of the same server if this history
        starts where the old history ended. The route also continues in the history of a new primary if this history
        provably contains all transactions that the route has reached. Unreadable data ends the route, unless GTIDs
        prove that the unreadable data contains no further transaction.
        """
        files, state = self._files, self._state
        is_some_archive = bool(files or state.unreadable)
        begin = begin_of(point, files, self._histories, state, self._heads) if is_some_archive else NO_ARCHIVE
        if isinstance(begin, RouteEnd):
            return Route(point, RouteFiles(), 0, True, point.taken, point.gtids, begin)
        places: list[range] = []
        times = [point.taken]
        reached: Gtids | None = point.gtids
        step: int | RouteEnd = begin.at
        while not isinstance(step, RouteEnd):
            places.append(range(step, self._run_end(step) + 1))
            tail = self._tail(step)
            reached = None if point.gtids is None else joined(reached, tail.gtids)
            if tail.last_commit is not None:
                times.append(state.until(tail.last_commit))
            step = self._leave(places[-1][-1], reached)
        visited = RouteFiles(files, places)
        complete = complete_until(visited, step, state.complete)
        to = max(times if complete is None else [*times, state.until(complete)])
        return Route(point, visited, begin.offset, begin.is_exact, to, reached, step, visited.places)

    def _run_end(self, first: int) -> int:
        """Return the index of the last file of the run that contains a file. Every route in a run reaches its end."""
        at = first
        while (end := self._examined_end(at)) is None:
            way = _way(self._files, self._histories, at, self._state, self._names)
            if way != at + 1:
                self._ways[at] = way
                self._run_starts[at] = at
                insort(self._run_ends, at)
            else:
                at += 1
        self._run_starts[end] = min(first, self._run_starts[end])
        return end

    def _examined_end(self, at: int) -> int | None:
        """Return the index of the last file of the run that contains a file; None if the run was not examined yet."""
        number = bisect_left(self._run_ends, at)
        end = self._run_ends[number] if number < len(self._run_ends) else None
        return end if end is not None and self._run_starts[end] <= at else None

    def _tail(self, first: int) -> _Tail:
        """Return the transactions from this file to the end of its run."""
        end = self._run_end(first)
        number = bisect_left(self._tail_places, first)
        near = self._tail_places[number] if number < len(self._tail_places) else end + 1
        tail = self._tails[near] if near <= end else None
        for at in range(min(near, end + 1) - 1, first - 1, -1):
            tail = _Tail.of(self._files[at], tail)
        assert tail is not None
        if first not in self._tails:
            self._tails[first] = tail
            insort(self._tail_places, first)
        return tail

    def _leave(self, at: int, reached: Gtids | None) -> int | RouteEnd:
        """Return the file that follows the last file of a run, or the end of the route."""
        way = self._ways[at]
        if not isinstance(way, _Fork):
            return way
        known = self._left.get(at)
        if known is None or known[0] != reached:
            known = reached, _at_fork(self._files, self._histories, at, reached, self._state, way)
            self._left[at] = known
        return known[1]


def missing_before(before: RouteFile, file: RouteFile) -> str | None:
    """Return a description of the gap between two consecutive files of one incarnation; None if there is no gap."""
    if file.gap is not None:
        return file.gap
    if file.is_anonymous and not (before.is_rotated and file.number == before.number + 1):
        return missing_between(before, file.number, None)
    return missing_between(before, file.number, file.previous)


def _way(
    files: Sequence[RouteFile],
    histories: Sequence[History],
    at: int,
    state: ArchiveState,
    names: Mapping[str, Collection[str]],
) -> int | _Fork:
    """Return the index of the file that follows this file in every route.

    If the next file depends on the GTIDs that a route has reached, return a fork. If the server was set back to the end
    of this file and then wrote another history, the route continues in the newer history. The argument `names` contains
    the server's identities in each incarnation.
    """
    here = files[at]
    newer = _newer_history(files, at, [history for history in histories if history.low > at], names[here.incarnation])
    if newer.place is not None:
        return newer.place
    following = files[at + 1] if at + 1 < len(files) and files[at + 1].incarnation == here.incarnation else None
    gap = state.damage_after(here, following)
    if following is not None:
        missing = missing_before(here, following)
        if missing is None:
            return at + 1
        gap = gap or RouteEnd(EndKind.GAP, f"before {following.name}: {missing}")
    return _Fork(newer, gap)


def _at_fork(
    files: Sequence[RouteFile],
    histories: Sequence[History],
    at: int,
    reached: Gtids | None,
    state: ArchiveState,
    fork: _Fork,
) -> int | RouteEnd:
    """Return how a route that has reached the given GTIDs continues after a fork: the next file's index, or its end."""
    later = [history for history in histories if history.low > at and history.high <= fork.newer.limit]
    other = takeover(files, at, later, reached)
    if isinstance(other, int):
        return other
    left, lost = failback(files, at, histories, reached, state), state.lost_history_after(files[at])
    second = second_writer(files, files[at], reached, state)
    ends = [end for end in (fork.gap, fork.newer.end, other, left, second, lost) if end is not None]
    return next((end for end in ends if end.kind is not EndKind.NEWEST), next(iter(ends), NEWEST))


@dataclass(frozen=True)
class _NewerHistory:
    """The relation of a server's later incarnations to a file.

    The incarnation that continues the file begins at the index `place`. If no incarnation continues it, `end` is the
    reason. Files with the index `limit` or higher do not continue the file's history.
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
            return _NewerHistory(place, low, _end_of_history(here, other, is_reset=is_reset))
        if here.is_rotated and other.gap is None and same_gtids(here.reached, previous):
            place = low
        elif same_gtids(here.reached, previous) or not _is_ahead(previous, here.reached):
            return _NewerHistory(place, low, _end_of_history(here, other, is_reset=False))
        else:
            missing = other.gap or missing_between(here, other.number, previous)
            end = end or RouteEnd(EndKind.GAP, f"before {other.name}: {missing}")
    return _NewerHistory(place, len(files), end)


def _end_of_history(here: RouteFile, first: RouteFile, *, is_reset: bool) -> RouteEnd:
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
    """Return whether `outer` contains `inner`. Equal sequence numbers must come from the same server."""
    if isinstance(outer, GtidPosition) and isinstance(inner, GtidPosition):
        pairs = [(outer.heads.get(domain), head) for domain, head in inner.heads.items()]
        return all(mine is not None and (mine[1] > head[1] or mine == head) for mine, head in pairs)
    return contains(outer, inner)
