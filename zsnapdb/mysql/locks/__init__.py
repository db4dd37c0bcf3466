"""Lock strategies, one file each, and how to get one by name."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import HeldLock, Strategy, Terms, held
from zsnapdb.mysql.locks.ftwrl import GlobalReadLock
from zsnapdb.mysql.locks.instance import InstanceLock
from zsnapdb.mysql.locks.none import NoLock
from zsnapdb.mysql.locks.percona import TableBackupLock
from zsnapdb.mysql.locks.stage import BackupStage
from zsnapdb.mysql.locks.watchdog import Watchdog

__all__ = ["HeldLock", "Strategy", "Terms", "Watchdog", "held", "strategy"]


def strategy(name: str, *, longest: float, kill: str) -> Strategy:
    """Return the strategy of that name; the rest is for the global read lock (see there)."""
    made: tuple[Strategy, ...] = (
        NoLock(),
        InstanceLock(),
        TableBackupLock(),
        BackupStage(),
        GlobalReadLock(longest, kill),
    )
    return next(found for found in made if found.name == name)
