"""The basic types as frozen dataclasses. This module is pure: it uses no clock and no I/O."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet

PROPERTY = "zsnapdb"
"""Namespace of every ZFS user property, hold tag and bookmark of zsnapdb."""

SNAPSHOT_PREFIX = "zsnapdb-"
_SHORT_GTIDS = 1000

_BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")


class Flavour(StrEnum):
    """The two server families. All other differences between servers are detected by probing the server."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


def new_backup_id(now: datetime, randomness: int) -> str:
    """Return an id that sorts by time: UTC to the second and four hexadecimal digits of randomness."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{randomness & 0xFFFF:04x}"


def is_backup_id(text: str) -> bool:
    """Return whether the text matches the pattern of a backup id and contains a valid date and time."""
    if _BACKUP_ID.fullmatch(text) is None:
        return False
    try:
        backup_time(text)
    except ValueError:
        return False
    return True


def backup_time(backup_id: str) -> datetime:
    """Return the time (UTC) in a backup id. Raises ValueError if the text is not a backup id."""
    # Slices are ten times as fast as strptime, which matters for tens of thousands of ids.
    day, at = backup_id[:8], backup_id[9:15]
    return datetime(int(day[:4]), int(day[4:6]), int(day[6:]), int(at[:2]), int(at[2:4]), int(at[4:]), tzinfo=UTC)


def pool_of(name: str) -> str:
    """Return the pool of a dataset, snapshot or bookmark with this full name."""
    return name.partition("/")[0].partition("@")[0].partition("#")[0]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as ZFS reports it. The GUID identifies a snapshot; its name and time do not."""

    dataset: str
    name: str
    guid: int
    createtxg: int

    @property
    def full_name(self) -> str:
        return f"{self.dataset}@{self.name}"


@dataclass(frozen=True)
class SnapshotSet:
    """The snapshots of all volumes of an instance, by role. One request created them in one transaction group."""

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
    """The position of a state in the server's history. The field `source` states where the position was read.

    - `gtids` is None if the server assigns no GTIDs.
    - `coordinates` is None if the server writes no binlog.
    - `fingerprint` identifies the binlog of the coordinates. It is None if that file was not read.
    - `last_gtid` is the last GTID in that file before the coordinates. It is None if the file was not read or contains
      no GTID.
    """

    flavour: Flavour
    coordinates: BinlogCoordinates | None
    gtids: Gtids | None
    source: str
    fingerprint: str | None = None
    last_gtid: str | None = None

    def describe(self) -> str:
        words = []
        if self.coordinates is not None:
            words.append(f"{self.coordinates.file}:{self.coordinates.offset}")
        if self.gtids is not None:
            words.append(str(self.gtids) or "(no transactions)")
        return " ".join(words) or "(no binlog)"

    def short(self, limit: int) -> str:
        """Return the position in at most `limit` bytes: in full, or as coordinates and a digest of the GTIDs.

        The value of a ZFS user property may have 8191 bytes (zfsprops(7)). A GTID set with many sources can be longer.
        """
        complete = self.describe()
        if len(complete.encode()) <= limit:
            return complete
        digest = hashlib.sha256(str(self.gtids).encode()).hexdigest()
        return replace(self, gtids=None).describe() + f" gtids-sha256:{digest}"


def parse_gtids(flavour: Flavour, text: str) -> Gtids:
    """Return the GTIDs from a text in this flavour's notation. Raises ValueError if the text is malformed."""
    return _parse_again(flavour, text) if len(text) <= _SHORT_GTIDS else _parse(flavour, text)


def _parse(flavour: Flavour, text: str) -> Gtids:
    return GtidPosition.parse(text) if flavour is Flavour.MARIADB else GtidSet.parse(text)


# An archive of 40,000 binlogs has each text several times: the end of a file is the start of the next one.
_parse_again = functools.lru_cache(maxsize=512)(_parse)


@dataclass(frozen=True)
class Progress:
    """The progress of a long step: the finished bytes, and the total bytes (None if unknown)."""

    step: str
    done: int
    total: int | None


def server_name(server_uuid: str | None, server_id: int) -> str:
    """Return the UUID of a server, or its server id if it has no UUID."""
    return server_uuid or f"server_id {server_id}"
