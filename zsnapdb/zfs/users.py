"""Which processes keep a filesystem from being unmounted: by the working directory, root and open files of each."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FilesystemUser:
    """A process that uses a filesystem: its number, its name as the kernel has it, and what of it lies there."""

    pid: int
    name: str
    what: str

    def describe(self) -> str:
        """Return the use in a few words."""
        return f"process {self.pid} ({self.name}) has {self.what} there"


def users_of(devices: Collection[int], proc: Path = Path("/proc")) -> list[FilesystemUser]:
    """Return the processes that use the filesystems of these numbers, but not this process. Only root sees all of them.

    The number of the filesystem decides (stat(2), st_dev), so neither names nor links can hide one.
    """
    users = []
    for entry in proc.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            what = next((what for what, device in _used(entry) if device in devices), None)
            if what is not None:
                users.append(FilesystemUser(int(entry.name), _name(entry), what))
    return sorted(users, key=lambda user: user.pid)


def _used(process: Path) -> Iterator[tuple[str, int]]:
    """Yield what a process has, and the number of the filesystem on which it lies. It may end meanwhile."""
    for what in ("cwd", "root"):
        try:
            yield {"cwd": "its working directory", "root": "its root"}[what], os.stat(process / what).st_dev
        except OSError:
            continue
    try:
        descriptors = os.listdir(process / "fd")
    except OSError:
        return
    for number in descriptors:
        try:
            yield "an open file", os.stat(process / "fd" / number).st_dev
        except OSError:
            continue


def family_of(pid: int, proc: Path = Path("/proc")) -> set[int]:
    """Return the process, those it descends from, and those that descend from it."""
    parents = {int(entry.name): _parent(entry) for entry in proc.iterdir() if entry.name.isdigit()}
    family, at = {pid}, parents.get(pid, 0)
    while at > 1 and at not in family:
        family.add(at)
        at = parents.get(at, 0)
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return family | below


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""
