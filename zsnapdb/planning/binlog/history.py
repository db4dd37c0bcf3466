"""What a route through the archive is made of: archived files, their histories, backups, and why a route ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from zsnapdb.base.gtid import Gtids
from zsnapdb.base.model import BinlogCoordinates, Flavour
from zsnapdb.planning.binlog.archive import KnownArchived

_SECOND = 1_000_000


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

    The snapshot was made between `taken` and `before`, both in microseconds UTC. `fingerprint` is that of the binlog in
    the coordinates. `last_gtid` is the GTID of the last transaction in the backup. None: not known.
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
    """The kind of reason why a route ends."""

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


@dataclass(frozen=True)
class RouteEnd:
    """Why a route ends, as a kind and in words."""

    kind: EndKind
    reason: str


@dataclass(frozen=True)
class Unreadable:
    """A place in the archive that cannot be read: a binlog, or all binlogs of an incarnation (`name` is None).

    If a part of the binlog can be read, that part is among the archived files. `reason` names the damaged object.
    """

    incarnation: str
    name: str | None
    number: int
    reason: str


@dataclass(frozen=True)
class CompleteUntil:
    """The archive of an incarnation is complete until a time (microseconds UTC, by the clock of the server).

    Every transaction that the server committed up to `until` lies before byte `end` of the binlog `name`.
    """

    incarnation: str
    name: str
    end: int
    until: int


@dataclass(frozen=True)
class ArchiveState:
    """What is known about an archive beside its readable files.

    `read_at` is when it was read (microseconds UTC; None: not known): nothing in it was committed later.
    """

    unreadable: tuple[Unreadable, ...] = ()
    complete: tuple[CompleteUntil, ...] = ()
    read_at: int | None = None

    def at(self, moment: datetime) -> ArchiveState:
        """Return the state of an archive that was read at this moment (UTC)."""
        return replace(self, read_at=round(moment.timestamp() * _SECOND))

    def until(self, time: int) -> int:
        """Return a time (microseconds UTC) that may have come from events, or when the archive was read if later."""
        return time if self.read_at is None else min(time, self.read_at)

    def damage_after(self, file: RouteFile, following: RouteFile | None) -> RouteEnd | None:
        """Return the end of a route at a file if what follows in its incarnation cannot be read; else None.

        `following` is the next readable file of the incarnation (None: the file is the last).
        """
        for place in self.unreadable:
            is_between = place.number >= file.number and (following is None or place.number < following.number)
            if place.name is not None and place.incarnation == file.incarnation and is_between:
                return RouteEnd(EndKind.UNREADABLE, f"{place.name} cannot be read: {place.reason}")
        return None

    def lost_history_after(self, file: RouteFile) -> RouteEnd | None:
        """Return the end of a route at a file if an incarnation that began later cannot be read; else None."""
        for place in self.unreadable:
            # Ids begin with the time in seconds.
            if place.name is None and place.incarnation.partition("-")[0] >= file.incarnation.partition("-")[0]:
                reason = f"a later history of the archive cannot be read: {place.reason}"
                return RouteEnd(EndKind.UNREADABLE, reason)
        return None

    @property
    def has_lost_history(self) -> bool:
        """Whether the archive has an incarnation that cannot be read."""
        return any(place.name is None for place in self.unreadable)


NOTHING_KNOWN = ArchiveState()


@dataclass(frozen=True)
class History:
    """The files of one incarnation: those from place `low` to before `high`."""

    low: int
    high: int

    @property
    def places(self) -> range:
        """The places of its files."""
        return range(self.low, self.high)


def histories_of(files: Sequence[RouteFile]) -> Iterator[History]:
    """Return the histories of archived files (incarnations, oldest first)."""
    low = 0
    for at in range(1, len(files) + 1):
        if at == len(files) or files[at].incarnation != files[low].incarnation:
            yield History(low, at)
            low = at
