"""Mounting of filesystems exactly at their mount points, even if other accounts create links at the same time.

`zfs mount` passes a path to the kernel, which follows every symbolic link in it (path_resolution(7)). A server's
account can create symbolic links at any moment in its own folders. So this module opens the mount point folder by
folder. It then mounts on `/proc/self/fd/N`, which always leads to the open folder (proc(5)).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from zsnapdb.base import safe_open
from zsnapdb.base.errors import CommandError
from zsnapdb.zfs import datasets, encryption, mounts

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _NOATIME, _RELATIME, _STRICTATIME = 1, 2, 4, 8, 1 << 10, 1 << 21, 1 << 24
"""Flags of mount(2), from linux/mount.h."""
_SWITCHES = (
    ("readonly", "on", _RDONLY),
    ("setuid", "off", _NOSUID),
    ("devices", "off", _NODEV),
    ("exec", "off", _NOEXEC),
)
_NEW_NAMESPACE, _NO_LINK = 0x20000, 8
"""CLONE_NEWNS of setns(2), and UMOUNT_NOFOLLOW of umount2(2)."""
_USED = ("mounted", "mountpoint", "keystatus", "atime", "relatime", *[name for name, _, _ in _SWITCHES])

_libc = ctypes.CDLL(None, use_errno=True)


def mount_all(names: Iterable[str], at: Mapping[str, str] | None = None) -> None:
    """Mount the filesystems that are not mounted, parents first, each at its `mountpoint`. Create missing folders.

    `at` contains the paths of filesystems whose `mountpoint` is not a path (legacy, none), as listed in fstab. Missing
    encryption keys are loaded from their `keylocation`, because they may not have been loaded since the host booted.

    Raises: UnsafeFileError: a symbolic link exists below the outermost mount point, or another account can create a
    link on the path to it CommandError: the kernel refuses the mount, or a mount point is unknown
    """
    wanted = list(names)
    if mounts.mounted_datasets().issuperset(wanted):
        return
    seen = datasets.properties_of(wanted, _USED)
    stated = {name: {key: each.value for key, each in seen[name].items()} for name in wanted}
    places = {name: _place_of(name, values["mountpoint"], (at or {}).get(name)) for name, values in stated.items()}
    unmounted = {name for name in wanted if stated[name]["mounted"] != "yes"}
    encryption.unlock(name for name in wanted if lacks_key(stated[name]))
    for name, place in sorted(places.items(), key=lambda item: len(item[1].parts)):
        if name in unmounted:
            outer = [other for other in places.values() if place != other and place.is_relative_to(other)]
            with _open_mount(place, min(outer, key=lambda other: len(other.parts), default=None)) as folder:
                _mount(name, place, folder, flags(stated[name]))


def _place_of(name: str, mountpoint: str, known: str | None) -> Path:
    place = mountpoint if mountpoint.startswith("/") else known
    if place is None:
        raise CommandError(
            f"{name} has mountpoint={mountpoint}, so its place is not known",
            hint="mount it as the site does (`mount -t zfs`), or set its mountpoint to a path",
        )
    return Path(place)


def unmount_elsewhere(name: str) -> None:
    """Unmount a filesystem of zsnapdb in the mount namespaces of other processes, unless a process uses it.

    A namespace that was created while a clone was mounted keeps a copy of that mount (mount_namespaces(7)). A child of
    this process enters the namespace, so no program from that namespace runs. A mount in use is kept.
    """
    for mount in mounts.mounted_elsewhere([name]):
        child = os.fork()
        if child == 0:
            _end_in_namespace(mount)
        os.waitpid(child, 0)


def _end_in_namespace(mount: mounts.ForeignMount) -> NoReturn:
    """In the mount's namespace, unmount the filesystem if the path is still its mount point. Then end this process."""
    try:
        namespace = os.open(f"/proc/{mount.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if _libc.setns(namespace, _NEW_NAMESPACE) == 0:
            number = os.stat(mount.path, follow_symlinks=False).st_dev
            if f"{os.major(number)}:{os.minor(number)}" == mount.device:
                _libc.umount2(os.fsencode(mount.path), _NO_LINK)
    finally:
        os._exit(0)


def lacks_key(values: Mapping[str, str]) -> bool:
    """Return whether a filesystem cannot be mounted before its key is loaded.

    A mounted filesystem works without its key. ZFS unloads the key when a clone is promoted.
    """
    return values["mounted"] != "yes" and values["keystatus"] == "unavailable"


def flags(values: Mapping[str, str]) -> int:
    """Return the mount(2) flags for the values of a filesystem's properties, as `zfs mount` sets them.

    The kernel reads all other properties from the dataset itself. Only the properties that this function uses are mount
    flags (zfsprops(7), "Temporary Mount Point Properties").
    """
    switched = sum(flag for name, value, flag in _SWITCHES if values[name] == value)
    if values["atime"] == "off":
        return switched | _NOATIME
    return switched | (_RELATIME if values["relatime"] == "on" else _STRICTATIME)


@contextlib.contextmanager
def _open_mount(place: Path, outermost: Path | None) -> Iterator[int]:
    if outermost is None:
        with safe_open.folder(place, makes=True) as at:
            yield at
    else:
        with safe_open.folder_below(outermost, place.relative_to(outermost).parts, makes=True) as at:
            yield at


def _mount(dataset: str, place: Path, at: int, flagged: int) -> None:
    number = call_kernel(dataset, f"/proc/self/fd/{at}", flagged)
    if number != 0:
        hint = "see `zfs mount` with the dataset's name, and the kernel log"
        if number == errno.EACCES:
            hint = "is its encryption key loaded? See `zfs load-key`"
        raise CommandError(f"{dataset} could not be mounted at {place}: {os.strerror(number)}", hint=hint)


def call_kernel(dataset: str, target: str, flagged: int) -> int:
    """Call mount(2) with the option `zfsutil`, as `zfs mount` does. Return 0 or the errno."""
    done = _libc.mount(os.fsencode(dataset), os.fsencode(target), b"zfs", ctypes.c_ulong(flagged), b"zfsutil")
    return 0 if done == 0 else ctypes.get_errno()
