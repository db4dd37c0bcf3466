"""Measured rates and counted requests, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class MeasuredRate:
    """A measured value, and the conditions under which it was measured."""

    value: float
    source: str


BACKUP = MeasuredRate(
    1280 * MIB / 2.59,
    "1,280 MiB of InnoDB in 2.59 s, zstd 1, encrypted, two processors with the S3 server on them"
    " (benchmark of throughput, 2026-11-24)",
)
"""Bytes of a stream that a backup stores in a second."""
RESTORE = MeasuredRate(
    8.4 * GIB / 31.3,
    "8.4 GiB in 31.3 s with the recovery of the server, MariaDB, a guest with one processor and the S3 server in it"
    " (benchmark of restores)",
)
"""Bytes of a stream that a restore receives in a second."""
STORED = MeasuredRate(
    0.43, "the recorded stream of InnoDB in the benchmark of throughput; that of restores is stored as 0.26"
)
"""Stored bytes for a byte of a stream."""
BINLOG_STORED = MeasuredRate(0.53, "22.9 MiB of binlog stored as 12.1 MiB, encrypted, in a guest of the lab")
"""Stored bytes for a byte of a binlog."""
BACKUP_MEMORY = MeasuredRate(250 * MIB, "a backup of 1, 4 and of 16 GiB (benchmark of throughput)")
RESTORE_MEMORY = MeasuredRate(220 * MIB, "a restore of 1, 4 and of 16 GiB (benchmark of throughput)")


@dataclass(frozen=True)
class Requests:
    """Requests to a store, by the kinds that have different prices."""

    put: float = 0.0
    list: float = 0.0
    get: float = 0.0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.put + other.put, self.list + other.list, self.get + other.get)

    def times(self, number: float) -> Requests:
        """Return as many of the same requests."""
        return Requests(self.put * number, self.list * number, self.get * number)


BACKUP_REQUESTS = Requests(put=17, list=6, get=7)
"""Requests of a backup besides its chunks, at most. A unit test counts them."""
ROUND_REQUESTS = Requests(put=2)
"""Requests of a round of the archiver that stores a segment, at most. A unit test counts them."""
MERGE_REQUESTS = Requests(put=2, get=1)
"""Requests of the archiver that replace MERGED segments by one, at most."""
MERGED = 32
"""Number of segments that the archiver merges into one."""
