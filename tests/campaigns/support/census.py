"""Resource counts of a guest: memory, descriptors, processes, snapshots, holds, files. Growth is a leak."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.lab.inside import ledger

SOCKET = "/run/mysqld/mysqld.sock"
FOLDERS = (Path("/var/lib/zsnapdb"), Path("/run/zsnapdb"))


def by_folder() -> Counter[str]:
    """Return the number of zsnapdb's files on the host, by folder."""
    return Counter({folder: len(files) for top in FOLDERS for folder, _, files in os.walk(top)})


def _lines(*argv: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return done.stdout.splitlines()


def memory(pid: int, what: str = "VmRSS") -> int:
    """Return the memory of a process in bytes; 0 if it has ended. Source: proc(5), which has KiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:")), 0)


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of the process; 0 if it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


@dataclass(frozen=True)
class Census:
    """The counts of one moment. `wait` is the longest commit since the last census, in seconds."""

    minute: float
    transfers: int
    wait: float
    backup: float
    """Seconds of the newest backup; 0 while none is known."""
    agent: int
    agent_descriptors: int
    archiver: int
    archiver_descriptors: int
    processes: int
    sessions: int
    snapshots: int
    bookmarks: int
    holds: int
    datasets: int
    mounts: int
    files: int
    free: int
    """Available memory of the guest in bytes."""


def take(minute: float, transfers: int, wait: float, backup: float, agent: int, archiver: int) -> Census:
    snapshots = _lines("zfs", "list", "-H", "-t", "snapshot", "-o", "name")
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist")
        ((sessions,),) = cursor.fetchall()
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    return Census(
        minute=minute,
        transfers=transfers,
        wait=wait,
        backup=backup,
        agent=memory(agent),
        agent_descriptors=descriptors(agent),
        archiver=memory(archiver),
        archiver_descriptors=descriptors(archiver),
        processes=sum(entry.isdecimal() for entry in os.listdir("/proc")),
        sessions=int(sessions),
        snapshots=len(snapshots),
        bookmarks=len(_lines("zfs", "list", "-H", "-t", "bookmark", "-o", "name")),
        holds=len(_lines("zfs", "holds", "-H", *snapshots)) if snapshots else 0,
        datasets=len(_lines("zfs", "list", "-H", "-o", "name")),
        mounts=len(Path("/proc/mounts").read_text().splitlines()),
        files=by_folder().total(),
        free=int(available.split()[1]) << 10,
    )


LEVELS = {
    "agent": 4 << 20,
    "agent_descriptors": 0,
    "archiver": 8 << 20,
    "archiver_descriptors": 1,
    "processes": 2,
    "sessions": 1,
    "snapshots": 2,
    "bookmarks": 2,
    "holds": 0,
    "datasets": 0,
    "mounts": 0,
    "files": 10,
}
"""Allowed growth of the minimum from the middle to the end. The minimum is what remains between jobs."""


@dataclass(frozen=True)
class Change:
    """A count in the middle and at the end of the run. `problem` is "" if it did not get worse."""

    name: str
    middle: float
    end: float
    problem: str = ""


def _rate(part: Sequence[Census]) -> float:
    return (part[-1].transfers - part[0].transfers) / (part[-1].minute - part[0].minute)


SPEEDS: tuple[tuple[str, str, Callable[[Sequence[Census]], float], Callable[[float, float], bool]], ...] = (
    ("transfers a minute", "the load became slower", _rate, lambda before, after: after > 0.7 * before),
    (
        "longest commit (s)",
        "commits wait longer",
        lambda part: median(one.wait for one in part),
        lambda before, after: after <= 2 * before + 0.1,
    ),
    (
        "backup (s)",
        "backups take longer",
        lambda part: median(one.backup for one in part),
        lambda before, after: after <= 1.5 * before + 5,
    ),
)
"""The name of a speed, the problem if the end is slower, its measurement, and the comparison."""


def changes(censuses: Sequence[Census]) -> list[Change]:
    """Compare the last third of a run with the one before.

    In the first third the retention policy has not removed anything yet, and not every kind of job has run. A shorter
    part may have no moment without a running job.
    """
    third = len(censuses) // 3
    middle, end = censuses[third : 2 * third], censuses[2 * third :]
    found = []
    for name, more in LEVELS.items():
        before, after = (min(getattr(one, name) for one in part) for part in (middle, end))
        found.append(Change(name, before, after, f"{name} grew" if after > before + more else ""))
    for name, what, of, limit in SPEEDS:
        before, after = of(middle), of(end)
        found.append(Change(name, before, after, "" if limit(before, after) else what))
    return found
