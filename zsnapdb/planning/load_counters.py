"""Computes how the counters of ZFS and of a server changed between two moments. Pure.

Sources:

- arcstats: arcstat(1) and module/zfs/arc.c
- the kstat zil: module/zfs/zil.c
- requests: zpool-iostat(8), -w and -r
- processors: proc(5)
- servers: the manuals of MySQL 8.4 ("Server Status Variables") and MariaDB ("InnoDB Status Variables")
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Counters = Mapping[str, int]
Name = TypeVar("Name", str, int)


@dataclass(frozen=True)
class Histogram:
    """The number of requests in each bucket. The names of the buckets are those of zpool-iostat(8).

    A latency bucket is named after its largest value in nanoseconds, and a size bucket after its smallest value in
    bytes.
    """

    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def percentile(self, share: float) -> int | None:
        """Return the lowest bucket up to which this share of the requests lies; None if there are no requests."""
        if not self.total:
            return None
        left = share * self.total
        for limit in sorted(self.counts):
            left -= self.counts[limit]
            if left <= 0:
                return limit
        return max(self.counts)

    def since(self, before: Histogram) -> Histogram | None:
        """Return the counts since `before`; None if the counters were reset."""
        counts = _since(self.counts, before.counts)
        return Histogram(counts) if counts is not None else None


@dataclass(frozen=True)
class DiskRequests:
    """The requests to a pool's disks: the durations of reads and writes on disk (ns), and their sizes."""

    reads: Histogram = Histogram()
    writes: Histogram = Histogram()
    read_sizes: Histogram = Histogram()
    write_sizes: Histogram = Histogram()


@dataclass(frozen=True)
class LoadSample:
    """The counters at one moment. Unreadable parts are empty. The pair `processor` contains the busy and all ticks."""

    server: Counters
    arc: Counters = field(default_factory=dict)
    intent_log: Counters = field(default_factory=dict)
    disks: DiskRequests = DiskRequests()
    processor: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Load:
    """The load during a period of `seconds`. A field is None if its counters were unreadable or were reset.

    The fields `arc_now` and `server_now` contain the values at the end, including values that are not counters. The
    field `busy` is the fraction of processor time in use, from 0 to 1.
    """

    seconds: float
    server: Counters | None
    server_now: Counters
    arc: Counters | None
    arc_now: Counters
    intent_log: Counters | None
    reads: Histogram | None
    writes: Histogram | None
    read_sizes: Histogram | None
    write_sizes: Histogram | None
    busy: float | None

    def rate(self, count: int | None) -> float:
        """Return the number of counted events per second."""
        return (count or 0) / self.seconds


_GAUGES = {
    *("size", "c", "c_min", "c_max", "l2_size", "l2_asize", "arc_meta_used", "data_size", "metadata_size"),
    *("anon_size", "mru_size", "mfu_size", "mru_ghost_size", "mfu_ghost_size"),
}
"""Values of arcstats that are not counters."""
_SERVER_GAUGES = {"Innodb_buffer_pool_pages_total", "Innodb_buffer_pool_pages_free", "Innodb_page_size"}


def load_between(begin: LoadSample, end: LoadSample, seconds: float) -> Load:
    """Return the load between two samples that are this many seconds apart."""
    busy, ticks = end.processor[0] - begin.processor[0], end.processor[1] - begin.processor[1]
    return Load(
        seconds=seconds,
        server=_since(end.server, begin.server, _SERVER_GAUGES),
        server_now=end.server,
        arc=_since(end.arc, begin.arc, _GAUGES),
        arc_now=end.arc,
        intent_log=_since(end.intent_log, begin.intent_log),
        reads=end.disks.reads.since(begin.disks.reads),
        writes=end.disks.writes.since(begin.disks.writes),
        read_sizes=end.disks.read_sizes.since(begin.disks.read_sizes),
        write_sizes=end.disks.write_sizes.since(begin.disks.write_sizes),
        busy=busy / ticks if ticks > 0 and 0 <= busy <= ticks else None,
    )


def _since(end: Mapping[Name, int], begin: Mapping[Name, int], gauges: Container[Name] = ()) -> dict[Name, int] | None:
    """Return the increase of each counter; None if there are no counters, or if a reset made a counter decrease."""
    risen = {name: value - begin[name] for name, value in end.items() if name in begin and name not in gauges}
    return None if not risen or min(risen.values()) < 0 else risen
