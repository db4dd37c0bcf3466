"""The words of the tool as frozen dataclasses. Pure: no clock, no I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from zsnapdb.gtid import GtidPosition, Gtids, GtidSet

PROPERTY = "zsnapdb"
"""Namespace of every ZFS user property, hold tag and bookmark of ours."""

SNAPSHOT_PREFIX = "zsnapdb-"

_BACKUP_ID = re.compile(r"^\d{8}T\d{6}Z-[0-9a-f]{4}$")


class Flavour(StrEnum):
    """The two families of servers; what one can do beyond that is probed."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


def new_backup_id(now: datetime, randomness: int) -> str:
    """Return an id that sorts by time: UTC to the second and four hexadecimal digits of randomness."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{randomness & 0xFFFF:04x}"


def is_backup_id(text: str) -> bool:
    """Whether the text has the form of a backup id."""
    return _BACKUP_ID.match(text) is not None


def backup_time(backup_id: str) -> datetime:
    """Return the time (UTC) a backup id carries; ValueError if it is none."""
    # By place: strptime takes ten times as long, and there may be tens of thousands.
    day, at = backup_id[:8], backup_id[9:15]
    return datetime(int(day[:4]), int(day[4:6]), int(day[6:]), int(at[:2]), int(at[2:4]), int(at[4:]), tzinfo=UTC)


def pool_of(dataset: str) -> str:
    """Return the pool that a dataset lies in."""
    return dataset.split("/", 1)[0]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as ZFS knows it. `guid` is its identity; name and clock are not."""

    dataset: str
    name: str
    guid: int
    createtxg: int

    @property
    def full_name(self) -> str:
        return f"{self.dataset}@{self.name}"


@dataclass(frozen=True)
class SnapshotSet:
    """Snapshots of all volumes of an instance, made by one command in one transaction group."""

    backup_id: str
    snapshots: Mapping[str, Snapshot]

    @property
    def createtxg(self) -> int:
        return next(iter(self.snapshots.values())).createtxg


@dataclass(frozen=True)
class BinlogCoordinates:
    """A binlog file (base name) and an offset in it, in bytes."""

    file: str
    offset: int


@dataclass(frozen=True)
class Position:
    """Where a state stands in the server's history, and how that is known.

    `gtids` is None where the server does not number its transactions; `coordinates` is None without a binlog.
    """

    flavour: Flavour
    coordinates: BinlogCoordinates | None
    gtids: Gtids | None
    source: str

    def describe(self) -> str:
        """Return the position in one line."""
        words = []
        if self.coordinates is not None:
            words.append(f"{self.coordinates.file}:{self.coordinates.offset}")
        if self.gtids is not None:
            words.append(str(self.gtids) or "(no transactions)")
        return " ".join(words) or "(no binlog)"

    def short(self, limit: int) -> str:
        """Return the position in at most `limit` bytes: whole if it fits, else the coordinates and a digest of the GTIDs.

        For a ZFS user property, whose value may have 8191 bytes (zfsprops(7)); a GTID set of many sources is longer.
        """
        whole = self.describe()
        if len(whole.encode()) <= limit:
            return whole
        digest = hashlib.sha256(str(self.gtids).encode()).hexdigest()
        return replace(self, gtids=None).describe() + f" gtids-sha256:{digest}"


def parse_gtids(flavour: Flavour, text: str) -> Gtids:
    """Return the GTIDs a server of this flavour printed. ValueError if malformed."""
    return GtidPosition.parse(text) if flavour is Flavour.MARIADB else GtidSet.parse(text)


@dataclass(frozen=True)
class Progress:
    """How far a long step is: bytes done, of how many (0: unknown)."""

    step: str
    done: int
    total: int
