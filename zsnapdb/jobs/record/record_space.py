"""Whether this host can keep its records: journals, results of jobs, what was told. A full disk ends that quietly."""

from __future__ import annotations

import os
from pathlib import Path

_LEAST_BYTES = 1 << 20
"""A journal of a backup is about as large."""


def objections(folder: Path) -> tuple[str, ...]:
    """Return why nothing can be kept in the folder: its file system is full, or read-only. Nothing if it can.

    Backups go on without a journal. But what is interrupted then begins anew, and what was told is not remembered.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        # This host has no records yet, or this account must not see them.
        return ()
    if disk.f_flag & os.ST_RDONLY:
        return (f"this host cannot keep its records: the file system of {folder} is read-only",)
    free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
    if free >= _LEAST_BYTES:
        return ()
    return (f"this host cannot keep its records: {folder} has {free} bytes of room",)
