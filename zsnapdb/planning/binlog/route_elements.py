"""The parts of a route through the archive: archived files, histories, backups, and reasons why a route ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import Gtids, GtidSet
from zsnapdb.planning.binlog.archive import KnownArchived

_SECOND = 1_000_000


class RouteFile(KnownArchived, Protocol):
    """An archived file with the earliest and latest commit time of its transactions.

    - `first_commit`, `last_commit`: microseconds UTC; None if the file has no transactions
    - `server`: the identity of the server (server_uuid, or server_id)
    - `created`: the time at which the server created the file, in seconds UTC
    - `gtids`: the GTIDs of the transactions in the file
    - `gap`: a description of data missing directly before the file
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
    """The position of a backup, and its server. Unknown fields are None.

    The snapshot was created between `taken` (the start of the backup) and `before`, both in microseconds UTC.
    `fingerprint` identifies the binlog in `coordinates`. The field `last_gtid` is the GTID of the last transaction in
    the backup.
    """

    backup_id: str
    taken: int
    before: int
    server: str
    coordinates: BinlogCoordinates | None
    gtids: Gtids | None
    flavour: Flavour
    fingerprint: str | None = None
    last_gtid: str | None = None


class EndKind(StrEnum):
    """The reason why a route ends, from a fixed list."""

    NEWEST = "newest"
    NO_BACKUP = "no-backup"
    NO_ARCHIVE = "no-archive"
    NOT_ARCHIVED = "not-archived"
    AMBIGUOUS = "ambiguous"
    GAP = "gap"
    UNREADABLE = "unreadable"
    RESET = "reset"
    SET_BACK = "set-back"
    LOST_IN_FAILOVER = "lost-in-failover"
    UNPROVEN_FAILOVER = "unproven-failover"
    SECOND_WRITER = "second-writer"


@dataclass(frozen=True)
class RouteEnd:
    """The reason why a route ends, as a kind and as text.

    If the kind is SECOND_WRITER, `other` is the history of the other writer.
    """

    kind: EndKind
    reason: str
    other: str = ""


def only_by_times(what: str) -> RouteEnd:
    """Return the end of a route if only times show that `what` is older than the reached state."""
    return RouteEnd(EndKind.NEWEST, f"nothing newer is archived, but only times show that {what} is older")


@dataclass(frozen=True)
class Unreadable:
    """An unreadable object in the archive: a binlog, or all binlogs of an incarnation (`name` is None).

    The readable part of the binlog is among the archived files. `reason` names the damaged object.
    """

    incarnation: str
    name: str | None
    number: int
    reason: str


@dataclass(frozen=True)
class CompleteUntil:
    """The time up to which the archive of an incarnation is complete (microseconds UTC, by the server's clock).

    Every transaction that the server committed up to `until` is before byte `end` of the binlog `name`.
    """

    incarnation: str
    name: str
    end: int
    until: int


@dataclass(frozen=True)
class ArchiveState:
    """The known facts about an archive, apart from its readable files.

    The field `read_at` is the time (microseconds UTC) at which the archive was read, if known. No transaction in the
    archive was committed later. For incarnations of a server that a restore returned to an earlier state, `taken_back`
    contains the GTIDs that were archived before. The pairs in `grown` are an incarnation, and another incarnation to
    which transactions were archived after the first one began.
    """

    unreadable: tuple[Unreadable, ...] = ()
    complete: tuple[CompleteUntil, ...] = ()
    read_at: int | None = None
    taken_back: tuple[tuple[str, GtidSet], ...] = ()
    grown: tuple[tuple[str, str], ...] = ()

    def was_taken_back(self, file: RouteFile, gtids: GtidSet) -> bool:
        """Return whether a restore had taken back these GTIDs when the incarnation of the file began."""
        return any(name == file.incarnation and known.contains(gtids) for name, known in self.taken_back)

    def at(self, moment: datetime) -> ArchiveState:
        """Return this state, with `moment` (UTC) as the time at which the archive was read."""
        return replace(self, read_at=round(moment.timestamp() * _SECOND))

    def until(self, time: int) -> int:
        """Return a time from events (microseconds UTC), limited to the time at which the archive was read."""
        return time if self.read_at is None else min(time, self.read_at)

    def damage_after(self, file: RouteFile, following: RouteFile | None) -> RouteEnd | None:
        """If the data that follows a file in its incarnation is unreadable, return the end of the route; else None.

        The argument `following` is the next readable file of the incarnation, or None if the file is the last.
        """
        for place in self.unreadable:
            is_between = place.number >= file.number and (following is None or place.number < following.number)
            if place.name is not None and place.incarnation == file.incarnation and is_between:
                return RouteEnd(EndKind.UNREADABLE, f"{place.name} cannot be read: {place.reason}")
        return None

    def lost_history_after(self, file: RouteFile) -> RouteEnd | None:
        """If another incarnation is unreadable, return the end of the route at this file; else None.

        Only times show whether that incarnation is later. If the unreadable incarnation seems to be earlier, the end
        has the kind NEWEST.
        """
        lost = [place for place in self.unreadable if place.name is None]
        for place in lost:
            # The id of an incarnation starts with the time in seconds.
            if place.incarnation.partition("-")[0] >= file.incarnation.partition("-")[0]:
                reason = f"a later history of the archive cannot be read: {place.reason}"
                return RouteEnd(EndKind.UNREADABLE, reason)
        return only_by_times(f"history {lost[0].incarnation}, which cannot be read,") if lost else None

    @property
    def has_lost_history(self) -> bool:
        return any(place.name is None for place in self.unreadable)


NOTHING_KNOWN = ArchiveState()


@dataclass(frozen=True)
class History:
    """The files of one incarnation: their indexes are from `low` up to, but not including, `high`."""

    low: int
    high: int

    @property
    def places(self) -> range:
        return range(self.low, self.high)


def histories_of(files: Sequence[RouteFile]) -> Iterator[History]:
    """Yield the histories of archived files (incarnations, oldest first)."""
    low = 0
    for at in range(1, len(files) + 1):
        if at == len(files) or files[at].incarnation != files[low].incarnation:
            yield History(low, at)
            low = at
