"""Opens the files of a snapshot for reading.

A path below `.zfs/snapshot` makes the kernel start mount(8), which takes long beside a busy server, and the snapshot
stays mounted for minutes (zfsconcepts(7); zfs(4), zfs_expire_snapshot). So the snapshot is mounted by this process at
no place at all (fsopen(2), fsmount(2)): nobody else sees the mount, and it ends with the block or with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from zsnapdb.base.errors import ZsnapdbError

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
"""Numbers of system calls, the same on all architectures; Linux has them since 5.2 (syscalls(2))."""
_SET_STRING, _CREATE = 1, 6
_CLOSE_ON_EXEC = 1
_READ_ONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
"""Commands and flags from linux/mount.h."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def root_of(snapshot: str, mountpoint: Path) -> Iterator[Path]:
    """Yield the folder with the files of the snapshot (full name) of the filesystem mounted at `mountpoint`.

    It is valid during the block. It lies below `.zfs` if this account may not mount, or the kernel cannot do it so. An
    error of ours that the block raises names the files by their places below `.zfs` in any case.
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
        # Who reads the message can look there, and not into a folder of this process.
        error.message = error.message.replace(f"{root}/", f"{visible}/")
        raise
    finally:
        os.close(opened)


def _mounted(snapshot: str) -> int | None:
    """Return the open root folder of a mount of the snapshot that has no place. None if the kernel refuses."""
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
    """Make a system call. Return what it returns, None if it fails."""
    done: int = _libc.syscall(
        ctypes.c_long(number), *[ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    )
    return None if done < 0 else done
