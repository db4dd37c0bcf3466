"""What can be recovered: from which backup on the archived binlogs lead how far, and where the holes are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from zsnapdb.gtid import Gtids, contains
from zsnapdb.model import BinlogCoordinates
from zsnapdb.planning.binlog.archive import KnownArchived, is_some, missing_between


class Dated(KnownArchived, Protocol):
    """An archived file with the earliest and latest commit time of its transactions, microseconds UTC (None if it has none).

    `server` is by what the server is known (server_uuid, or server_id), `created` when the server began the file, in
    seconds UTC.
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
    def gap(self) -> str | None: ...


@dataclass(frozen=True)
class BackupPoint:
    """Where a backup stands: its id, when it was begun (microseconds UTC), its server and position.

    Its snapshot was made between `taken` and `before`.
    """

    backup_id: str
    taken: int
    before: int
    server: str
    coordinates: BinlogCoordinates | None
    gtids: Gtids | None


@dataclass(frozen=True)
class Stretch:
    """Bytes `start` to `end` of an archived file, to be applied after what comes before it.

    `only`: leave out what is not among these GTIDs.

    A stretch that begins before the backup's position repeats transactions the backup has; a server skips them by their
    GTIDs.
    """

    incarnation: str
    name: str
    start: int
    end: int
    only: Gtids | None = None


@dataclass(frozen=True)
class Route:
    """How far the archive leads from a backup, and over which stretches. `ends`: why it leads no further, in words."""

    point: BackupPoint
    stretches: tuple[Stretch, ...]
    to: int
    reached: Gtids | None
    ends: str


@dataclass(frozen=True)
class Range:
    """Every transaction from one time to another (microseconds UTC) can be recovered, starting from one of the backups."""

    start: int
    end: int
    backups: tuple[str, ...]


@dataclass(frozen=True)
class Hole:
    """From one time to another nothing can be recovered, and why."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Window:
    """What can be recovered: ranges in order, and the holes between them."""

    ranges: tuple[Range, ...]
    holes: tuple[Hole, ...]
    routes: tuple[Route, ...]


NOT_ARCHIVED = "no archived binlog holds its position"
NEWEST = "nothing newer is archived"


def window(points: Sequence[BackupPoint], files: Sequence[Dated]) -> Window:
    """Return what can be recovered from the backups (oldest first) and the archived files (incarnations and their files in order)."""
    routes = tuple(follow(point, files) for point in sorted(points, key=lambda point: point.taken))
    ranges: list[Range] = []
    holes: list[Hole] = []
    why = ""
    for route in routes:
        end = max(route.to, route.point.taken)
        if ranges and route.point.taken <= ranges[-1].end:
            if end >= ranges[-1].end:
                why = route.ends
            ranges[-1] = replace(
                ranges[-1], end=max(ranges[-1].end, end), backups=(*ranges[-1].backups, route.point.backup_id)
            )
            continue
        if ranges:
            holes.append(Hole(ranges[-1].end, route.point.taken, why))
        ranges.append(Range(route.point.taken, end, (route.point.backup_id,)))
        why = route.ends
    return Window(tuple(ranges), tuple(holes), routes)


def follow(point: BackupPoint, files: Sequence[Dated]) -> Route:
    """Return how far the archive leads from a backup: within its own history, then in that of a server that took over."""
    begun = _begin(point, files)
    if begun is None:
        return Route(point, (), point.taken, point.gtids, NOT_ARCHIVED)
    at, offset = begun
    stretches: list[Stretch] = []
    visited: list[Dated] = []
    while True:
        file = files[at]
        stretches.append(Stretch(file.incarnation, file.name, offset, file.end))
        visited.append(file)
        following, missing = _next(files, at)
        if following is None:
            following = _successor(files, at)
            if following is None:
                break
            stretches = _left(stretches, visited, files[following].previous)
        at, offset = following, files[following].start
    commits = [file.last_commit for file in visited if file.last_commit is not None]
    return Route(point, tuple(stretches), max([point.taken, *commits]), visited[-1].reached, missing)


def _begin(point: BackupPoint, files: Sequence[Dated]) -> tuple[int, int] | None:
    """Return the file (by its place) and offset where a backup's position is; None if that is not archived.

    By file and offset within the history of its own server; by GTIDs anywhere. The newest history that fits counts; a
    file the server began after the snapshot was made does not, whatever it says: after a reset the same names and GTIDs
    come again.
    """
    older = [at for at in range(len(files) - 1, -1, -1) if files[at].created * 1_000_000 <= point.before]
    where = point.coordinates
    for at in older:
        file = files[at]
        if (
            where is not None
            and (file.name, file.server) == (where.file, point.server)
            and file.start <= where.offset <= file.end
            and _holds(file, point)
        ):
            return at, where.offset
    for at in older:
        if (
            files[at].previous is not None
            and not files[at].is_anonymous
            and point.gtids is not None
            and _holds(files[at], point)
        ):
            return at, files[at].start
    return None


def _holds(file: Dated, point: BackupPoint) -> bool:
    """Whether a position can be in this file, by its GTIDs."""
    if point.gtids is None or file.previous is None or file.reached is None:
        return True
    return contains(point.gtids, file.previous) and contains(file.reached, point.gtids)


def _next(files: Sequence[Dated], at: int) -> tuple[int | None, str]:
    """Return the place of the file that follows in the history of the same server, or None and why there is none.

    Where the server was set back and went on from here in another way, that newer history counts.
    """
    here = files[at]
    firsts = [place for place in range(at + 1, len(files)) if files[place].incarnation != files[place - 1].incarnation]
    for place in reversed(firsts):
        other = files[place]
        is_same = (
            other.server == here.server
            and here.is_sealed
            and other.gap is None
            and other.previous is not None
            and is_some(other.previous)
        )
        if is_same and missing_between(here, here.number + 1, other.previous) is None:
            return place, ""
    if at + 1 == len(files) or files[at + 1].incarnation != here.incarnation:
        return None, NEWEST
    missing = missing_between(here, files[at + 1].number, files[at + 1].previous)
    return (at + 1, "") if missing is None else (None, missing)


def _successor(files: Sequence[Dated], at: int) -> int | None:
    """Return the place of the newest file, in the history of another server, before which nothing is left out that this file does not reach.

    None if no other server took over. What only this history has is left behind: transactions that were lost when the
    other took over.
    """
    here = files[at]
    for place in range(len(files) - 1, at, -1):
        file = files[place]
        is_other = file.incarnation != here.incarnation and file.server != here.server and not file.is_anonymous
        if (
            is_other
            and file.previous is not None
            and here.reached is not None
            and contains(here.reached, file.previous)
        ):
            return place
    return None


def _left(stretches: list[Stretch], visited: list[Dated], taken_over: Gtids | None) -> list[Stretch]:
    """Return the stretches of a history that is left for one in which, at first, only `taken_over` had happened."""
    kept = []
    for stretch, file in zip(stretches, visited, strict=True):
        is_part = taken_over is None or file.reached is None or contains(taken_over, file.reached)
        kept.append(stretch if is_part else replace(stretch, only=taken_over))
    return kept
