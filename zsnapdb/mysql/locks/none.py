"""No lock at all: an atomic snapshot is what a crash leaves, and the server recovers from that."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties


class NoLock(Strategy):
    """For servers whose every user table and every DDL survives a crash; planning/backup/crash_safety.py says which.

    Its connection is still opened before and asked after, so a server that restarted meanwhile is noticed.
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
