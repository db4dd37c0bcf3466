"""What the kernel says of its memory, of the ARC and of the parameters of the ZFS module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zsnapdb.planning.advice.facts import MemoryFacts

PARAMETERS = ("zfs_nocacheflush", "zfs_send_corrupt_data")
"""The parameters that a rule looks at."""


def read_memory(parameters: Sequence[str] = PARAMETERS, root: Path = Path("/")) -> MemoryFacts:
    """Return the memory of the host, the greatest size of the ARC and the parameters of the ZFS module.

    What the kernel does not show is None or absent. `root`: below which /proc and /sys are.
    """
    # `doctor` alone needs them; how much memory is free, others ask too.
    from zsnapdb.planning.advice.facts import MemoryFacts

    settings = {name: _text(root / "sys/module/zfs/parameters" / name).strip() for name in parameters}
    return MemoryFacts(
        total=_bytes_of("MemTotal:", _text(root / "proc/meminfo")),
        arc_max=_arc_max(_text(root / "proc/spl/kstat/zfs/arcstats")),
        parameters={name: value for name, value in settings.items() if value},
    )


def free_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes a new program can have without swapping; None if the kernel does not say.

    MemAvailable (proc(5)) does not count the ARC, which gives its memory back late. A container may have less than its
    host: what the limits of its control groups leave (cgroups(7), memory.max and memory.current) bounds the answer.
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
    """Whether SELinux is active: then its file system is mounted (selinux(8))."""
    return (root / "sys/fs/selinux/enforce").exists()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _bytes_of(name: str, meminfo: str) -> int | None:
    """Return a value of /proc/meminfo (proc(5)), which counts KiB, in bytes."""
    for line in meminfo.split("\n"):
        words = line.split()
        if len(words) == 3 and words[0] == name and words[1].isdigit():
            return int(words[1]) << 10
    return None


def _arc_max(arcstats: str) -> int | None:
    """Return c_max in bytes: what the ARC may grow to, also where zfs_arc_max is 0 and the module decides."""
    for line in arcstats.split("\n"):
        words = line.split()
        if len(words) == 3 and words[0] == "c_max" and words[2].isdigit():
            return int(words[2])
    return None
