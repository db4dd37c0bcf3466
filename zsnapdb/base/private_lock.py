"""Lock files of this host that no other account can open: every account that can read a file can also lock it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_SECONDS = 0.01
_OTHERS = 0o077
_LOCK_LINE = re.compile(
    r"[0-9]+: FLOCK +\S+ +(?:READ|WRITE) +(?P<pid>[0-9]+) "
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>[0-9]+) "
)
"""A granted lock in /proc/locks (proc_locks(5))."""


def open_private(path: Path) -> int:
    """Open the lock file to read and append, and create it if it is missing. No other account can open it.

    OSError if that is impossible, ELOOP if it is a link. A file system with one mode for all files keeps that mode.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(opened).st_mode & _OTHERS:
        with contextlib.suppress(OSError):
            os.fchmod(opened, 0o600)
    return opened


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock file exclusively during the block, on all hosts that mount it (flock works over NFS).

    TimeoutError with the file and the holder if another process holds it for `seconds`. OSError as for `open_private`.
    """
    deadline = time.monotonic() + seconds
    opened = open_private(path)
    try:
        while not _is_taken(opened):
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"{holder(opened)} held the lock {path} for {seconds:g} s")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(opened)


def _is_taken(opened: int) -> bool:
    """Try to take the lock. Return whether it was free."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(opened: int) -> str:
    """Return the process that holds a lock on the open file, as far as this host's kernel knows."""
    status = os.fstat(opened)
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as lines:
        for line in lines:
            found = _LOCK_LINE.match(line)
            if found and (int(found["major"], 16), int(found["minor"], 16), int(found["inode"])) == wanted:
                return f"process {found['pid']}{_account(found['pid'])}"
    return "a process that this host does not know"


def _account(pid: str) -> str:
    with contextlib.suppress(OSError):
        return f" of uid {os.stat(f'/proc/{pid}').st_uid}"
    return ""
