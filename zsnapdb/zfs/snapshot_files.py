"""Access to the files of a snapshot.

To resolve a path below `.zfs/snapshot`, the kernel starts mount(8), which is slow next to a busy server. The snapshot
then stays mounted for minutes (zfsconcepts(7); zfs(4), zfs_expire_snapshot). So this process mounts the snapshot
without a mount point (fsopen(2), fsmount(2)). No other process sees this mount, which ends with the block or with this
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.zfs.mounts import mounted

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""System call numbers, the same on all architectures, since Linux 5.2 (syscalls(2))."""
_SET_STRING, _CREATE = 1, 6
_CLOSE_ON_EXEC = 1
_READ_ONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
"""Commands and flags from linux/mount.h."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def root_of(snapshot: str, mountpoint: Path) -> Iterator[Path]:
    """Yield the folder with the files of `snapshot` (full name). Its filesystem is mounted at `mountpoint`.

    The folder is valid during the block. The folder is below `.zfs` if this account may not mount, or if the kernel
    lacks fsopen(2) or fsmount(2). If the block raises a ZsnapdbError, the message always shows paths of files below
    `.zfs`.
    """
    visible = mountpoint / ".zfs" / "snapshot" / snapshot.partition("@")[2]
    opened = _mounted(snapshot)
    if opened is None:
        yield visible
        return
    root = Path(f"/proc/self/fd/{opened}")
    try:
        yield root
    except ZsnapdbError as error:
        # A person who reads the message can open a path below `.zfs`, but not a descriptor of this process.
        error.message = error.message.replace(f"{root}/", f"{visible}/")
        raise
    finally:
        os.close(opened)


def _mounted(snapshot: str) -> int | None:
    """Return an open descriptor of the root of a mount that has no mount point; None if the kernel refuses."""
    context = _call(_FSOPEN, b"zfs", _CLOSE_ON_EXEC)
    if context is None:
        return None
    try:
        if _call(_FSCONFIG, context, _SET_STRING, b"source", os.fsencode(snapshot), 0) is None:
            return None
        if _call(_FSCONFIG, context, _CREATE, None, None, 0) is None:
            return None
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, _READ_ONLY | _NOSUID | _NODEV | _NOEXEC)
    finally:
        os.close(context)


def _call(number: int, *words: int | bytes | None) -> int | None:
    """Make a system call and return its result, or None if it fails."""
    done: int = _libc.syscall(
        ctypes.c_long(number), *[ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    )
    return None if done < 0 else done


_CONTROL, _SNAPSHOTS = 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFD
"""Inodes of `.zfs` and `.zfs/snapshot` on Linux (zfs_ctldir.h).

No other file can have these inode numbers, so they cannot be forged.
"""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class SnapshotNames:
    """The short names of a filesystem's snapshots, each with a number.

    Two snapshots with the same name and number are the same snapshot if `mount` is also equal. This number is the
    snapshot's object number in the pool. `mount` changes whenever the filesystem is mounted again, for example after an
    import of the pool.
    """

    mount: str
    numbers: Mapping[str, int]


def snapshot_names(places: Collection[str]) -> dict[str, SnapshotNames] | None:
    """Return the snapshot names of each dataset; None if a dataset is not mounted in this namespace or hides `.zfs`."""
    try:
        where = {entry.source: entry for entry in mounted() if entry.fstype == "zfs" and not entry.is_bind}
        if not all(place in where for place in places):
            return None
        listed = {place: _list_names(where[place].path, where[place].device) for place in places}
    except OSError:
        return None
    return {place: names for place, names in listed.items() if names is not None} if all(listed.values()) else None


def _list_names(path: str, device: str) -> SnapshotNames | None:
    with _open_folder(path) as root, _open_folder(".zfs", root) as control, _open_folder("snapshot", control) as folder:
        about, inside = os.fstat(control), os.fstat(folder)
        is_its = f"{os.major(inside.st_dev)}:{os.minor(inside.st_dev)}" == device and about.st_dev == inside.st_dev
        if not is_its or (about.st_ino, inside.st_ino) != (_CONTROL, _SNAPSHOTS):
            return None
        # The kernel creates the inode of `.zfs` when it mounts the filesystem. So the inode's ctime is the time of the
        # mount.
        with os.scandir(folder) as entries:
            return SnapshotNames(f"{device} {about.st_ctime_ns}", {entry.name: entry.inode() for entry in entries})


@contextlib.contextmanager
def _open_folder(name: str, folder: int | None = None) -> Iterator[int]:
    opened = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)
