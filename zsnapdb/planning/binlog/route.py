"""Which archived binlogs continue a backup, and what ends them. Pure.

Restore, status, prune, clones and rescues all use `follow`, so a restore reaches what status promises. A route never
crosses a gap and never leads into another history. Where the archive does not prove that a file continues the reached
state, the route ends and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from zsnapdb.gtid import GtidPosition, Gtids, GtidSet, contains, joined
from zsnapdb.model import BinlogCoordinates, Flavour
from zsnapdb.planning.binlog.archive import KnownArchived, is_some, missing_between, same_gtids
from zsnapdb.planning.family import family

_MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RouteFile(KnownArchived, Protocol):
    """An archived file with the earliest and latest commit time of its transactions.

    Both times are in microseconds UTC (None: the file has no transactions). `server` identifies the server
    (server_uuid, or server_id). `created` is when the server began the file, in seconds UTC. `gtids` are those of its
    own transactions. `gap` says what is missing right before the file.
    """

    @property
    def first_commit(self) -> int | None: ...
    @property
    def last_commit(self) -> int | None: ...
    @property
    def server(self) -> str: ...
    @property
    def created(self) -> int: ...
    @property
    def gtids(self) -> Gtids | None: ...
    @property
    def gap(self) -> str | None: ...


@dataclass(frozen=True)
class BackupPoint:
    """The position of a backup: its id, when it was begun (`taken`), its server, its coordinates and GTIDs.

    The snapshot was made between `taken` and `before`, both in microseconds UTC.
    """

    backup_id: str
    taken: int
    before: int
    server: str
    coordinates: BinlogCoordinates | None
    gtids: Gtids | None
    flavour: Flavour


class EndKind(StrEnum):
    """The kind of reason why a route ends."""

    NEWEST = "newest"
    NO_ARCHIVE = "no-archive"
    NOT_ARCHIVED = "not-archived"
    AMBIGUOUS = "ambiguous"
    GAP = "gap"
    RESET = "reset"
    SET_BACK = "set-back"
    LOST_IN_FAILOVER = "lost-in-failover"
    UNPROVEN_FAILOVER = "unproven-failover"


@dataclass(frozen=True)
class RouteEnd:
    """Why a route ends, as a kind and in words."""

    kind: EndKind
    reason: str


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
    (microseconds UTC).
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


def follow(point: BackupPoint, files: Sequence[RouteFile]) -> Route:
    """Return the route from a backup through the archived files (incarnations, oldest first, and their files in order).

    The route stays in the backup's own history. It leads on into a newer history of the same server that begins where
    the older history ended, and into the history of a server that took over and provably contains everything reached.
    """
    histories = tuple(_histories(files))
    begin = _begin(point, files, histories) if files else NO_ARCHIVE
    if isinstance(begin, RouteEnd):
        return Route(point, (), 0, True, point.taken, point.gtids, begin)
    visited: list[RouteFile] = []
    reached: Gtids | None = point.gtids
    step: int | RouteEnd = begin.at
    while not isinstance(step, RouteEnd):
        file = files[step]
        visited.append(file)
        reached = None if point.gtids is None else joined(reached, file.gtids)
        step = _next(files, histories, step, reached)
    commits = [file.last_commit for file in visited if file.last_commit is not None]
    return Route(point, tuple(visited), begin.offset, begin.is_exact, max([point.taken, *commits]), reached, step)


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


@dataclass(frozen=True)
class _History:
    """The files of one incarnation: those from place `low` to before `high`."""

    low: int
    high: int

    @property
    def places(self) -> range:
        return range(self.low, self.high)


def _histories(files: Sequence[RouteFile]) -> Iterator[_History]:
    low = 0
    for at in range(1, len(files) + 1):
        if at == len(files) or files[at].incarnation != files[low].incarnation:
            yield _History(low, at)
            low = at


def _begin(point: BackupPoint, files: Sequence[RouteFile], histories: Sequence[_History]) -> _Begin | RouteEnd:
    """Return where a backup's position is.

    File and offset identify it within the history of the backup's server; GTIDs identify it in any history. Two kinds
    of files are excluded, because the same names and GTIDs come again after a reset: files that the server began after
    the snapshot, and files of a history that the server had left before the backup was begun.
    """
    older = [
        at
        for history in reversed(_not_left(files, histories, point.taken))
        for at in reversed(history.places)
        if files[at].created * _MICROSECONDS <= point.before
    ]
    fitting = [at for at in older if _is_at_coordinates(files[at], point)]
    if fitting:
        first = files[fitting[0]]
        others = [files[at] for at in fitting[1:] if files[at].created != first.created]
        if others and first.created * _MICROSECONDS > point.taken:
            return _AMBIGUOUS
        offset = point.coordinates.offset if point.coordinates is not None else first.start
        return _Begin(fitting[0], max(offset, first.start), True)
    by_gtids = next((at for at in older if _is_at_gtids(files[at], point)), None)
    if by_gtids is None:
        return NOT_ARCHIVED
    file = files[by_gtids]
    return _Begin(by_gtids, file.start, file.previous == point.gtids)


def _not_left(files: Sequence[RouteFile], histories: Sequence[_History], taken: int) -> list[_History]:
    """Return the histories that their servers had not yet left at a time (microseconds UTC)."""
    left: set[_History] = set()
    earlier: dict[str, list[_History]] = {}
    for history in histories:
        first = files[history.low]
        before = earlier.setdefault(first.server, [])
        if before:
            newest = max(files[at].created for other in before for at in other.places)
            # After a server was set back, its first file may be an older file that was cut. Only later files are new.
            own = history.low if first.created > newest else history.low + 1
            if own < history.high and files[own].created * _MICROSECONDS <= taken:
                left.update(before)
        before.append(history)
    return [history for history in histories if history not in left]


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


def _is_at_gtids(file: RouteFile, point: BackupPoint) -> bool:
    """Whether this file and the files after it contain everything after the backup, by GTIDs alone.

    On MariaDB only a file that begins exactly at the position proves that: a position does not identify its history.
    """
    if point.gtids is None or not is_some(point.gtids) or file.previous is None or file.is_anonymous:
        return False
    if isinstance(point.gtids, GtidPosition):
        return file.previous == point.gtids
    return contains(point.gtids, file.previous) and file.reached is not None and contains(file.reached, point.gtids)


def _next(files: Sequence[RouteFile], histories: Sequence[_History], at: int, reached: Gtids | None) -> int | RouteEnd:
    """Return the place of the next file, or why there is no next file.

    If the server was set back to the end of this file and then wrote another history, the newer history counts.
    """
    here = files[at]
    later = [history for history in histories if history.low > at]
    newer = _newer_history(files, at, later)
    if newer.place is not None:
        return newer.place
    gap = None
    if at + 1 < len(files) and files[at + 1].incarnation == here.incarnation:
        missing = missing_before(here, files[at + 1])
        if missing is None:
            return at + 1
        gap = RouteEnd(EndKind.GAP, f"before {files[at + 1].name}: {missing}")
    later = [history for history in later if history.high <= newer.limit]
    takeover = _takeover(files, at, later, reached)
    if isinstance(takeover, int):
        return takeover
    return gap or newer.end or takeover or NEWEST


@dataclass(frozen=True)
class _NewerHistory:
    """How later incarnations of the same server relate to a file.

    `place` is the first file of the incarnation that continues the file. No file from `limit` on belongs to this
    history. `end` says why no incarnation continues the file.
    """

    place: int | None
    limit: int
    end: RouteEnd | None


def _newer_history(files: Sequence[RouteFile], at: int, later: Sequence[_History]) -> _NewerHistory:
    here, place, end = files[at], None, None
    for low in (history.low for history in later):
        other = files[low]
        if other.server != here.server:
            continue
        is_numbered = not (here.is_anonymous or other.is_anonymous)
        previous = other.previous if is_numbered else None
        if previous is None or here.reached is None or not is_some(previous):
            is_reset = other.number == 1 or (is_numbered and other.previous is not None)
            return _NewerHistory(place, low, _left(other, is_reset=is_reset))
        if here.is_rotated and other.gap is None and same_gtids(here.reached, previous):
            place = low
        elif same_gtids(here.reached, previous) or not _is_ahead(previous, here.reached):
            return _NewerHistory(place, low, _left(other, is_reset=False))
        else:
            missing = other.gap or missing_between(here, other.number, previous)
            end = end or RouteEnd(EndKind.GAP, f"before {other.name}: {missing}")
    return _NewerHistory(place, len(files), end)


def _left(first: RouteFile, *, is_reset: bool) -> RouteEnd:
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


def _takeover(
    files: Sequence[RouteFile], at: int, later: Sequence[_History], reached: Gtids | None
) -> int | RouteEnd | None:
    """Return the place where the newest history of another server continues this history, or why none continues.

    None if no other server wrote more.
    """
    here, end = files[at], None
    if reached is None or not is_some(reached) or here.is_anonymous:
        return None
    for history in reversed(later):
        first, own = files[history.low], files[history.low : history.high]
        if first.server == here.server or first.is_anonymous:
            continue
        if isinstance(reached, GtidSet):
            is_repeated = any(file.server == first.server for file in files[: history.low])
            outcome = _taken_over_set(own, reached, is_repeated=is_repeated)
        else:
            outcome = _taken_over_position(own, reached)
        if isinstance(outcome, int):
            return history.low + outcome
        end = end or outcome
    return end


def _taken_over_set(files: Sequence[RouteFile], reached: GtidSet, *, is_repeated: bool) -> int | RouteEnd | None:
    """Return the place of the newest of another server's files before which everything is reached, or why none is.

    `is_repeated`: the server has an older history too. If the server was set back, its own numbers may stand for other
    transactions. So these numbers prove nothing unless they came before all of these files.
    """
    whole, first = files[-1].reached, files[0]
    if not isinstance(whole, GtidSet) or reached.contains(whole):
        return None
    before = first.previous if isinstance(first.previous, GtidSet) else GtidSet()
    own = GtidSet({name: part for name, part in reached.intervals.items() if name.partition(":")[0] == first.server})
    lost = own.minus(before) if is_repeated else GtidSet()
    lost = lost.union(reached.minus(whole))
    if lost.intervals:
        return RouteEnd(
            EndKind.LOST_IN_FAILOVER,
            f"server {first.server} took over with {first.name} and lacks transactions {lost} of this history",
        )
    for at in range(len(files) - 1, -1, -1):
        previous = files[at].previous
        if isinstance(previous, GtidSet) and not files[at].is_anonymous and reached.contains(previous):
            return at
    missing = before.minus(reached)
    return RouteEnd(EndKind.GAP, f"transactions {missing}: the binlogs of server {first.server} begin after them")


def _taken_over_position(files: Sequence[RouteFile], reached: Gtids) -> int | RouteEnd | None:
    """Return the place of the newest of another server's files that begins exactly at the reached position.

    MariaDB's positions do not show whether a transaction in the middle of a file is the same transaction.
    """
    whole, first = files[-1].reached, files[0]
    if whole is None or contains(reached, whole):
        return None
    for at in range(len(files) - 1, -1, -1):
        if files[at].previous == reached and files[at].gap is None:
            return at
    return RouteEnd(
        EndKind.UNPROVEN_FAILOVER,
        f"server {first.server} took over, and none of its binlogs begins exactly at {reached}; so nothing proves that"
        " no transaction was lost",
    )
