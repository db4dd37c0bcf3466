"""Facts from the kernel: memory, the ARC, ZFS module parameters, imported pools, and counters of load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.planning.load_counters import DiskRequests, Histogram
from zsnapdb.zfs.command import run

if TYPE_CHECKING:
    from zsnapdb.planning.advice.facts import MemoryFacts


PARAMETERS = ("zfs_nocacheflush", "zfs_send_corrupt_data")
"""Parameters that rules of `doctor` check."""


def read_memory(parameters: Sequence[str] = PARAMETERS, root: Path = Path("/")) -> MemoryFacts:
    """Return the host's memory, the maximum size of the ARC and the parameters of the ZFS module.

    Values that the kernel does not show are None or absent. `root` is the folder that contains /proc and /sys.
    """
    # This import is needed only by `doctor`. Other callers use `free_memory`.
    from zsnapdb.planning.advice.facts import MemoryFacts

    settings = {name: _text(root / "sys/module/zfs/parameters" / name).strip() for name in parameters}
    return MemoryFacts(
        total=_bytes_of("MemTotal:", _text(root / "proc/meminfo")),
        # c_max is valid even if zfs_arc_max is 0, which lets the module choose the limit.
        arc_max=arc_counters(root).get("c_max"),
        parameters={name: value for name, value in settings.items() if value},
    )


def free_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes a new program can use without swapping; None if unknown.

    MemAvailable (proc(5)) does not include the ARC, because the ARC releases memory slowly. In a container, the limits
    of the control groups also apply (cgroups(7), memory.max and memory.current).
    """
    available = _bytes_of("MemAvailable:", _text(root / "proc/meminfo"))
    bounds = [available] if available is not None else []
    _, _, path = _text(root / "proc/self/cgroup").partition("0::/")
    here = Path(path.partition("\n")[0])
    for group in (here, *here.parents) if ".." not in here.parts else ():
        most, used = (_text(root / "sys/fs/cgroup" / group / name).strip() for name in ("memory.max", "memory.current"))
        if most.isdecimal():
            bounds.append(max(0, int(most) - (int(used) if used.isdecimal() else 0)))
    return min(bounds, default=None)


def uses_selinux(root: Path = Path("/")) -> bool:
    """Whether SELinux is active, which means that its file system is mounted (selinux(8))."""
    return (root / "sys/fs/selinux/enforce").exists()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _bytes_of(name: str, meminfo: str) -> int | None:
    """Return a value of /proc/meminfo (proc(5)) in bytes. The unit in the file is KiB."""
    for line in meminfo.split("\n"):
        words = line.split()
        if len(words) == 3 and words[0] == name and words[1].isdecimal():
            return int(words[1]) << 10
    return None


MODULE = Path("/sys/module/zfs")
"""Folder of the loaded module; its file `version` contains, for example, 2.3.9-1."""
POOLS = Path("/proc/spl/kstat/zfs")
"""Folder that contains, among others, a folder for each pool. A pool's folder contains a file `state`, and from OpenZFS
2.1 on `guid`.
"""
_GUID = re.compile(r"[0-9]{1,20}")


def version() -> str | None:
    """Return the version of the loaded module; None if /sys does not show it."""
    try:
        return (MODULE / "version").read_text().strip() or None
    except OSError:
        return None


def pools() -> list[str] | None:
    """Return the names of the imported pools, sorted; None if /proc does not show them."""
    try:
        return sorted(place.name for place in POOLS.iterdir() if (place / "state").is_file()) or None
    except OSError:
        return None


def pool_guid(pool: str) -> int | None:
    """Return the GUID of an imported pool; None if /proc does not show it."""
    try:
        text = (POOLS / pool / "guid").read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if _GUID.fullmatch(text) else None


_TIMEOUT = 20.0
_KSTAT = "proc/spl/kstat/zfs"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LATENCY_COLUMNS = 8
_DISK_READS, _DISK_WRITES = (2,), (3,)
"""Columns of `zpool iostat -w` after the bucket: total_wait, disk_wait, syncq_wait, asyncq_wait; each read, write."""
_SIZE_COLUMNS = 8
_READ_SIZES, _WRITE_SIZES = (0, 1, 4, 5), (2, 3, 6, 7)
"""Columns of `zpool iostat -r`: sync_read, sync_write, async_read, async_write, each individual and aggregated."""
_IDLE = (3, 4)
"""Columns idle and iowait of the line `cpu` in /proc/stat, counted after the label (proc(5))."""
_TICKS = 8
"""Number of columns of the line `cpu` to add up. The first columns already include the later columns (guests)."""


def arc_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return the numbers of arcstats, keyed by name."""
    return _kstat(root / _KSTAT / "arcstats")


def intent_log_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return the total counters of the intent logs of all pools, keyed by name."""
    return _kstat(root / _KSTAT / "zil")


def processor_ticks(root: Path = Path("/")) -> tuple[int, int]:
    """Return the busy ticks and all ticks of the processors; (0, 0) if they are unknown."""
    for line in _text(root / "proc/stat").split("\n"):
        label, *words = line.split() or [""]
        if label == "cpu" and len(words) >= _TICKS and all(word.isdecimal() for word in words):
            ticks = [int(word) for word in words[:_TICKS]]
            return sum(ticks) - sum(ticks[column] for column in _IDLE), sum(ticks)
    return 0, 0


def disk_requests(pool: str) -> DiskRequests:
    """Return the requests to a pool's disks since its import (zpool-iostat(8)).

    The result is empty if `zpool` fails to report them.
    """
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
    """Return the sum of the given columns for each bucket of a histogram.

    Lines without a bucket or with fewer than `least` columns are skipped.
    """
    counts: dict[int, int] = {}
    for line in text.split("\n"):
        label, *words = line.split() or [""]
        bucket = _bucket(label)
        if bucket is not None and len(words) >= least and all(word.isdecimal() for word in words):
            counts[bucket] = sum(int(words[column]) for column in columns)
    return Histogram(counts)


def _bucket(label: str) -> int | None:
    """Return the bucket of a label. A label is a number, possibly with a unit, which some releases print despite -p."""
    number, unit = (label[:-1], label[-1:]) if label[-1:] in _UNITS else (label, "")
    return int(number) * _UNITS.get(unit, 1) if number.isdecimal() else None


def _kstat(path: Path) -> dict[str, int]:
    """Return the numbers of a named kstat, whose lines have a name, a type and a value."""
    rows = [line.split() for line in _text(path).split("\n")]
    return {row[0]: int(row[2]) for row in rows if len(row) == 3 and row[1].isdecimal() and row[2].isdecimal()}
