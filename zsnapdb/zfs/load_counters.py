"""Counters of the kernel and of a pool that say what its load is: ARC, intent log, disks, processors.

What cannot be read, or has an unknown form, is empty: counters are advice, and nothing is decided by them.
"""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.planning.load.counters import DiskRequests, Histogram
from zsnapdb.zfs.command import run

_TIMEOUT = 20.0
_KSTAT = "proc/spl/kstat/zfs"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LATENCY_COLUMNS = 8
_DISK_READS, _DISK_WRITES = (2,), (3,)
"""Columns of `zpool iostat -w` after the bucket: total_wait, disk_wait, syncq_wait, asyncq_wait, each of both."""
_SIZE_COLUMNS = 8
_READ_SIZES, _WRITE_SIZES = (0, 1, 4, 5), (2, 3, 6, 7)
"""Columns of `zpool iostat -r`: sync_read, sync_write, async_read, async_write, each individual and aggregated."""
_IDLE = (3, 4)
"""Columns of the line `cpu` of /proc/stat, after the label: idle and iowait (proc(5))."""
_TICKS = 8
"""Columns of that line that are counted: the later ones, of guests, are counted in the first ones again."""


def arc_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return arcstats, by name."""
    return _kstat(root / _KSTAT / "arcstats")


def intent_log_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return the counters of the intent logs of all pools, by name."""
    return _kstat(root / _KSTAT / "zil")


def processor_ticks(root: Path = Path("/")) -> tuple[int, int]:
    """Return the ticks in which a processor was busy, and all ticks; (0, 0) if they are not known."""
    for line in _text(root / "proc/stat").split("\n"):
        label, *words = line.split() or [""]
        if label == "cpu" and len(words) >= _TICKS and all(word.isdigit() for word in words):
            ticks = [int(word) for word in words[:_TICKS]]
            return sum(ticks) - sum(ticks[column] for column in _IDLE), sum(ticks)
    return 0, 0


def disk_requests(pool: str) -> DiskRequests:
    """Return what the disks of a pool did since its import (zpool-iostat(8)). Empty if `zpool` does not say it."""
    try:
        latencies = run(["zpool", "iostat", "-H", "-p", "-w", pool], timeout=_TIMEOUT)
        sizes = run(["zpool", "iostat", "-H", "-p", "-r", pool], timeout=_TIMEOUT)
    except ZsnapdbError:
        return DiskRequests()
    return DiskRequests(
        reads=histogram(latencies, _DISK_READS, _LATENCY_COLUMNS),
        writes=histogram(latencies, _DISK_WRITES, _LATENCY_COLUMNS),
        read_sizes=histogram(sizes, _READ_SIZES, _SIZE_COLUMNS),
        write_sizes=histogram(sizes, _WRITE_SIZES, _SIZE_COLUMNS),
    )


def histogram(text: str, columns: tuple[int, ...], least: int) -> Histogram:
    """Return the sum of these columns of a histogram. A line that is no bucket with `least` columns is left out."""
    counts: dict[int, int] = {}
    for line in text.split("\n"):
        label, *words = line.split() or [""]
        bucket = _bucket(label)
        if bucket is not None and len(words) >= least and all(word.isdigit() for word in words):
            counts[bucket] = sum(int(words[column]) for column in columns)
    return Histogram(counts)


def _bucket(label: str) -> int | None:
    """Return the bucket of a label: a number, also with a unit, as some releases print sizes despite -p."""
    number, unit = (label[:-1], label[-1:]) if label[-1:] in _UNITS else (label, "")
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else None


def _kstat(path: Path) -> dict[str, int]:
    """Return the numbers of a named kstat: lines of a name, a type and a value."""
    rows = [line.split() for line in _text(path).split("\n")]
    return {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[1].isdigit() and row[2].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
