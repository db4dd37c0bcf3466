"""No lock at all: an atomic snapshot looks like the files after a crash, from which the server recovers."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties


class NoLock(Strategy):
    """For servers whose user tables and DDL all survive a crash; see planning/backup/crash_safety.py.

    A connection is still opened before and checked after the snapshot, so a restart of the server is noticed.
    """

    properties = LockProperties(
        name="none",
        merit="crash-safe tables and atomic DDL need no lock",
        waits="nothing",
        needs_crash_safe=True,
        holds_ddl=False,
    )
    acquire = ()
    release = ("DO 0",)
