"""What a route through the archive is made of: archived files, their histories, backups, and why a route ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from zsnapdb.gtid import Gtids
from zsnapdb.model import BinlogCoordinates, Flavour
from zsnapdb.planning.binlog.archive import KnownArchived


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
