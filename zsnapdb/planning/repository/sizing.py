"""Estimates storage sizes and costs for a server from simulated backups, measured rates and list prices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any

from zsnapdb.config.repository import DEFAULT_KEEP, KeepRules
from zsnapdb.config.settings import OTHER_WRITERS_PAUSE
from zsnapdb.planning.repository.retention import decide


@dataclass(frozen=True)
class StorePrice:
    """A price list: prices per GiB and month, per 1,000 requests of each kind, and per GiB of outgoing traffic."""

    name: str
    date: str
    source: str
    currency: str
    gib_month: float
    put_thousand: float
    list_thousand: float
    get_thousand: float
    traffic_gib: float = 0.0


DATE = "2026-11-29"
NOTE = (
    "These are list prices without discounts and taxes. They were recorded on that date, and have not been"
    " checked since then. Compare them with the source before you decide."
)
PRICES: dict[str, StorePrice] = {
    "s3": StorePrice(
        "Amazon S3 Standard, us-east-1",
        DATE,
        "https://aws.amazon.com/s3/pricing/",
        "USD",
        gib_month=0.023,
        put_thousand=0.005,
        list_thousand=0.005,
        get_thousand=0.0004,
        traffic_gib=0.09,
    ),
    "azure": StorePrice(
        "Azure Blob Storage, hot tier, LRS, East US",
        DATE,
        "https://azure.microsoft.com/pricing/details/storage/blobs/",
        "USD",
        gib_month=0.018,
        put_thousand=0.0065,
        list_thousand=0.0065,
        get_thousand=0.0005,
        traffic_gib=0.087,
    ),
    "google": StorePrice(
        "Google Cloud Storage Standard, us-east1",
        DATE,
        "https://cloud.google.com/storage/pricing",
        "USD",
        gib_month=0.02,
        put_thousand=0.005,
        list_thousand=0.005,
        get_thousand=0.0004,
        traffic_gib=0.12,
    ),
}
"""The price lists, by their names for `--prices`."""


MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class MeasuredRate:
    """A measured value, and the conditions under which it was measured."""

    value: float
    source: str


BACKUP = MeasuredRate(
    1280 * MIB / 2.59,
    "1,280 MiB of InnoDB data in 2.59 s, zstd 1, encrypted, two processors that also ran the S3 server"
    " (throughput benchmark, 2026-11-24)",
)
"""The number of stream bytes that a backup stores per second."""
RESTORE = MeasuredRate(
    8.4 * GIB / 31.3,
    "8.4 GiB in 31.3 s, MariaDB, including its recovery, one processor that also ran the S3 server (restore benchmark)",
)
"""The number of stream bytes that a restore receives per second."""
STORED = MeasuredRate(0.43, "the InnoDB stream in the throughput benchmark; 0.26 in the restore benchmark")
"""The number of stored bytes for each stream byte."""
BINLOG_STORED = MeasuredRate(0.53, "22.9 MiB of binlog stored as 12.1 MiB, encrypted, in a virtual machine of the lab")
"""The number of stored bytes for each binlog byte."""
BACKUP_MEMORY = MeasuredRate(250 * MIB, "backups of 1, 4 and 16 GiB (throughput benchmark)")
RESTORE_MEMORY = MeasuredRate(220 * MIB, "restores of 1, 4 and 16 GiB (throughput benchmark)")


@dataclass(frozen=True)
class Requests:
    """The numbers of requests to a store, by kind of request. Each kind has its own price."""

    put: float = 0.0
    list: float = 0.0
    get: float = 0.0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.put + other.put, self.list + other.list, self.get + other.get)

    def times(self, number: float) -> Requests:
        return Requests(self.put * number, self.list * number, self.get * number)


BACKUP_REQUESTS = Requests(put=17, list=6, get=7)
"""The maximum number of requests of a backup, apart from its chunks. A unit test counts them."""
ROUND_REQUESTS = Requests(put=2)
"""The maximum number of requests for each segment of an archiver round. A unit test counts them."""
MERGE_REQUESTS = Requests(put=2, get=1)
"""The maximum number of requests with which the archiver replaces MERGED segments by one segment."""
LOOK_REQUESTS = Requests(list=1, get=1)
"""The maximum number of requests with which the archiver looks for other writers of the archive."""
MERGED = 32
"""The number of segments that the archiver merges into one segment."""


DAY = 86400.0
MONTH = 30 * DAY
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_HOURS = {"hourly": 1, "daily": 24, "weekly": 7 * 24, "monthly": 31 * 24, "yearly": 366 * 24}
"""The length in hours of the longest period of each retention rule, such as 744 for a month."""
_PERIODS = 3
"""The number of full backups that are simulated after the oldest backup that the rules keep."""
_LATER_CHUNK = 1_000_000
"""A chunk number so high that the chunk has the largest size."""
_PRUNES = 24
"""The approximate number of simulated prunes."""

ChunkSize = Callable[[int], int]
"""A function that takes the number of a chunk (from 1) and returns the chunk's size in bytes."""
ChunkSizes = Callable[[float], ChunkSize]
"""A function that takes the size of a stream in bytes and returns the sizes of its chunks."""


@dataclass(frozen=True)
class Workload:
    """A server: its data in bytes, its changes and binlogs in bytes per day, and its backup settings.

    The times `every`, `full_every` and `pause` (between two rounds of the archiver) are in seconds. The bandwidth to
    the store is `line`, in bytes per second. If `binlog` is 0, no binlog is archived.
    """

    size: int
    change: float
    binlog: float
    keep: KeepRules = DEFAULT_KEEP
    every: float = DAY
    full_every: float = 30 * DAY
    pause: float = 7.5
    line: float = 119.0 * MIB


@dataclass(frozen=True)
class KeptBackups:
    """The largest numbers of full backups and increments that a policy keeps, and the oldest backup's age in days."""

    full: int
    increments: int
    days: float


@dataclass(frozen=True)
class MonthlyCost:
    """The cost according to a price list: storage and requests in a month, and the outgoing traffic of one restore."""

    price: StorePrice
    storage: float
    requests: float
    restore: float

    @property
    def month(self) -> float:
        """The cost of a month without a restore."""
        return self.storage + self.requests


@dataclass(frozen=True)
class SizingEstimate:
    """The estimate for a server. Times are in seconds, sizes are in bytes, and requests are per month."""

    workload: Workload
    kept: KeptBackups
    full_seconds: float
    increment_seconds: float
    restore_seconds: float
    backup_memory: int
    restore_memory: int
    full_objects: int
    stored_full: int
    stored_increments: int
    stored_binlogs: int
    objects: int
    requests: Requests
    costs: tuple[MonthlyCost, ...] = field(default_factory=tuple)

    @property
    def stored(self) -> int:
        return self.stored_full + self.stored_increments + self.stored_binlogs


@dataclass(frozen=True)
class _Volume:
    role: str
    dataset: str
    guid: int
    from_guid: int | None
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Backup:
    backup_id: str
    volumes: tuple[_Volume, ...]
    made: datetime


def estimate(
    load: Workload, chunk_sizes: ChunkSizes, prices: tuple[StorePrice, ...] = (PRICES["s3"],)
) -> SizingEstimate:
    """Return the estimate for a server whose data is one stream. The chunk sizes are those of the configuration."""
    kept = kept_backups(_rules(load.keep), load.every, load.full_every)
    increment = load.change * load.every / DAY
    chunks, increment_chunks, binlog_chunks = (
        count_chunks(size, chunk_sizes(size)) for size in (load.size, increment, load.binlog)
    )
    backups, fulls = MONTH / load.every, MONTH / load.full_every
    requests = (
        BACKUP_REQUESTS.times(backups)
        + Requests(put=chunks * fulls + increment_chunks * max(0.0, backups - fulls))
        + _archive_requests(load, binlog_chunks, chunk_sizes(load.binlog)(_LATER_CHUNK))
    )
    stored_full = round(load.size * STORED.value)
    stored_increment = round(increment * STORED.value)
    made = SizingEstimate(
        workload=load,
        kept=kept,
        full_seconds=_seconds(load.size, BACKUP.value, STORED.value, load.line),
        increment_seconds=_seconds(increment, BACKUP.value, STORED.value, load.line),
        # The restore of the last backup before a new full backup, without replaying binlogs.
        restore_seconds=_seconds(_chain(load, increment), RESTORE.value, STORED.value, load.line),
        backup_memory=round(BACKUP_MEMORY.value),
        restore_memory=round(RESTORE_MEMORY.value),
        full_objects=chunks,
        stored_full=stored_full * kept.full,
        stored_increments=stored_increment * kept.increments,
        stored_binlogs=round(load.binlog * kept.days * BINLOG_STORED.value),
        objects=round(
            (chunks + 1) * kept.full + (increment_chunks + 1) * kept.increments + (binlog_chunks + 1) * kept.days
        ),
        requests=requests,
    )
    return replace(made, costs=tuple(_cost(made, chunks, price) for price in prices))


def count_chunks(size: float, chunk_size: ChunkSize) -> int:
    """Return the number of chunk objects into which a stream of `size` bytes is divided."""
    count = 0
    while size > 0:
        count += 1
        size -= chunk_size(count)
    return count


@lru_cache(64)
def kept_backups(rules: tuple[tuple[str, Any], ...], every: float, full_every: float) -> KeptBackups:
    """Return the largest numbers of backups that the policy keeps after it has begun to remove backups."""
    keep = KeepRules.model_construct(**dict(rules))
    reach = max(
        keep.within, keep.last * every, *(getattr(keep, name) * hours * 3600.0 for name, hours in _HOURS.items())
    )
    stored: list[_Backup] = []
    most, full_age, pruned = KeptBackups(0, 0, 0.0), full_every, 0.0
    number, passed, pause = 0, 0.0, max(every, DAY, reach / _PRUNES)
    while passed <= reach + _PERIODS * full_every:
        number, now = number + 1, _BEGIN + timedelta(seconds=passed)
        is_full = full_age >= full_every
        full_age = every if is_full else full_age + every
        volume = _Volume("data", "tank/data", number, None if is_full else number - 1)
        stored.append(_Backup(f"{now:%Y%m%dT%H%M%SZ}-{number % 65536:04x}", (volume,), now))
        if passed - pruned >= pause:
            pruned = passed
            kept = decide(stored, keep, now).kept
            stored = [one for one in stored if one.backup_id in kept]
            if passed >= reach + full_every:
                most = _larger(most, stored, now)
        passed += every
    return most


def _larger(most: KeptBackups, stored: Sequence[_Backup], now: datetime) -> KeptBackups:
    fulls = sum(one.volumes[0].from_guid is None for one in stored)
    age = (now - stored[0].made).total_seconds() / DAY
    return KeptBackups(max(most.full, fulls), max(most.increments, len(stored) - fulls), max(most.days, age))


def _rules(keep: KeepRules) -> tuple[tuple[str, Any], ...]:
    return tuple((name, getattr(keep, name)) for name in KeepRules.model_fields)


def _archive_requests(load: Workload, binlog_chunks: int, chunk: int) -> Requests:
    """Return the archiver's requests in a month in which the server writes all the time.

    A segment has at most one chunk of `chunk` bytes. The archiver also reads back each chunk of a rotated binlog.
    """
    if not load.binlog:
        return Requests()
    rounds = MONTH / load.pause
    segments = max(1, ceil(load.binlog * load.pause / DAY / chunk))
    whole_files = Requests(put=binlog_chunks + 1, get=binlog_chunks).times(MONTH / DAY)
    looks = LOOK_REQUESTS.times(MONTH / OTHER_WRITERS_PAUSE)
    return ROUND_REQUESTS.times(rounds * segments) + MERGE_REQUESTS.times(rounds / MERGED) + whole_files + looks


def _seconds(size: float, rate: float, stored: float, line: float) -> float:
    """Return the duration of a stream in seconds. It depends on whichever is slower, the program or the line."""
    return max(size / rate, size * stored / line)


def _chain(load: Workload, increment: float) -> float:
    """Return the bytes of a whole chain: a full backup and all increments before the next full backup."""
    return load.size + increment * max(0.0, load.full_every / load.every - 1)


def _cost(made: SizingEstimate, chunks: int, price: StorePrice) -> MonthlyCost:
    thousands = made.requests.times(0.001)
    requests = (
        thousands.put * price.put_thousand + thousands.list * price.list_thousand + thousands.get * price.get_thousand
    )
    load = made.workload
    fetched = _chain(load, load.change * load.every / DAY) * STORED.value / GIB
    return MonthlyCost(
        price,
        storage=made.stored / GIB * price.gib_month,
        requests=requests,
        restore=fetched * price.traffic_gib + chunks / 1000 * price.get_thousand,
    )
