"""Mounted file systems of all types, from the kernel's list.

Only this list contains the file systems of other types that are mounted below a dataset.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_WORDS_BEFORE, _WORDS_AFTER = 6, 3
"""Minimum number of words of a line before and after its separator (proc(5))."""


@dataclass(frozen=True)
class MountEntry:
    """One line of the mount table. `is_bind` is True if the mount shows one folder of its source (mount(8), --bind).

    `device` is the filesystem's number as `MAJOR:MINOR` (proc_pid_mountinfo(5)). All files of the filesystem have this
    number. `shared` is the mount's peer group, and `master` is the group from which the mount receives events
    (mount_namespaces(7)). `shared` or `master` is "" if the mount has no such group.
    """

    path: str
    fstype: str
    source: str
    is_bind: bool = False
    device: str = ""
    shared: str = ""
    master: str = ""


def _plain(word: str) -> str:
    """Decode the octal escapes in the mount table (proc(5): space, tab, newline, backslash)."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def parse(text: str) -> list[MountEntry]:
    """Return the entries of a mountinfo file (proc(5)), in mount order.

    The kernel escapes space, tab, line feed and backslash. Every other byte is part of a name, even a form feed. Bytes
    that are not UTF-8 become lone surrogates (os.fsdecode).
    """
    entries = []
    for line in text.split("\n"):
        if " - " not in line:
            continue
        left, _, right = line.partition(" - ")
        about, of = left.split(" "), right.split(" ")
        if len(about) < _WORDS_BEFORE or len(of) < _WORDS_AFTER:
            continue
        (root, path), (fstype, source) = about[3:5], of[:2]
        entries.append(MountEntry(_plain(path), fstype, _plain(source), root != "/", about[2], *_groups(about[6:])))
    return entries


def _groups(optional: list[str]) -> tuple[str, str]:
    """Return the peer group of a mount, and the group from which it receives events."""
    of_kind = dict(word.partition(":")[::2] for word in reversed(optional))
    return of_kind.get("shared", ""), of_kind.get("master", "")


def mounted() -> list[MountEntry]:
    """Return the mounts in this process's mount namespace, except the snapshots that ZFS itself mounts."""
    return [
        entry
        for entry in parse(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
        if "@" not in entry.source or entry.fstype != "zfs"
    ]


def mounted_datasets() -> frozenset[str]:
    """Return the datasets that are mounted in this process's mount namespace, as `zfs get mounted` reports.

    libzfs reads the same list (libzfs_mount.c, is_mounted), so no program is needed.
    """
    return frozenset(entry.source for entry in mounted() if entry.fstype == "zfs")


def devices_of(names: Collection[str]) -> set[int]:
    """Return the device numbers (stat(2), st_dev) of the datasets that are mounted in this namespace."""
    numbers = [entry.device.split(":") for entry in mounted() if entry.fstype == "zfs" and entry.source in names]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def working_dataset(process: Path) -> str | None:
    """Return the dataset that contains the working folder of a process; None if the folder is not on a dataset.

    `process` is a folder of proc(5).

    The kernel's device number identifies the dataset in the process's own mount namespace, regardless of its path.
    """
    try:
        device = os.stat(process / "cwd").st_dev
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    found = (entry.source for entry in _entries_of(process) if entry.fstype == "zfs" and entry.device == number)
    return next(found, None)


@dataclass(frozen=True)
class ForeignMount:
    """A mount of a dataset in another mount namespace, with the id of a process in that namespace.

    `follows` says whether an unmount in this process's namespace also ends this mount. `device` has the same meaning as
    in `MountEntry`.
    """

    source: str
    path: str
    pid: int
    follows: bool
    device: str = ""

    def describe(self) -> str:
        return f"{self.source} is also mounted at {self.path} in the mount namespace of process {self.pid}"

    @property
    def remedy(self) -> str:
        return f"end what runs there (`nsenter -t {self.pid} -m`, `ps {self.pid}`), or unmount it there"


def mounted_elsewhere(names: Collection[str], proc: Path = Path("/proc")) -> list[ForeignMount]:
    """Return the mounts of the datasets in the mount namespaces of other processes, such as containers and services.

    `zfs get mounted` shows only the mount namespace of its own process. Processes that end during the scan are skipped.
    Only root sees all mounts.
    """
    seen = [
        (pid, entry)
        for pid in _one_of_each_namespace(proc)
        for entry in _entries_of(proc / str(pid))
        if entry.fstype == "zfs" and entry.source in names
    ]
    if not seen:
        return []
    own = [entry for entry in _entries_of(proc / "self") if entry.fstype == "zfs" and entry.source in names]
    reached = {entry.shared for entry in own} - {""}
    while more := {entry.shared for _, entry in seen if entry.master in reached} - reached - {""}:
        # A peer group that receives events from this namespace forwards them to its own receivers.
        reached |= more
    return [
        ForeignMount(entry.source, entry.path, pid, bool({entry.shared, entry.master} & reached), entry.device)
        for pid, entry in seen
    ]


def _one_of_each_namespace(proc: Path) -> list[int]:
    by_namespace: dict[str, int] = {}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        namespace = _namespace(proc / str(pid))
        if namespace:
            by_namespace.setdefault(namespace, pid)
    by_namespace.pop(_namespace(proc / "self"), None)
    return list(by_namespace.values())


def namespace_of(pid: int) -> str:
    """Return the mount namespace of a process; "" if the process has ended or this account may not read it."""
    return _namespace(Path(f"/proc/{pid}"))


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns/mnt")
    except OSError:
        return ""


def _entries_of(process: Path) -> Iterator[MountEntry]:
    try:
        text = os.fsdecode((process / "mountinfo").read_bytes())
    except OSError:
        return
    yield from parse(text)


@dataclass(frozen=True)
class FilesystemUser:
    """A process that uses a filesystem: its id, its name in the kernel, and the kind of use."""

    pid: int
    name: str
    what: str

    def describe(self) -> str:
        return f"process {self.pid} ({self.name}) has {self.what} there"


def users_of(devices: Collection[int], proc: Path = Path("/proc")) -> list[FilesystemUser]:
    """Return the processes, except this one, that use the filesystems with the given device numbers.

    Only root sees all processes that use the filesystems. The comparison uses st_dev (stat(2)), so names and links
    cannot hide a process.
    """
    users = []
    for entry in proc.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            what = next((what for what, device in _uses_of(entry) if device in devices), None)
            if what is not None:
                users.append(FilesystemUser(int(entry.name), _name(entry), what))
    return sorted(users, key=lambda user: user.pid)


def _uses_of(process: Path) -> Iterator[tuple[str, int]]:
    """Yield each kind of use by a process, with the filesystem's device number. The process may end during the call."""
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
    """Return the ids of the process, its ancestors and its descendants."""
    parents = {int(entry.name): _parent(entry) for entry in proc.iterdir() if entry.name.isdecimal()}
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
