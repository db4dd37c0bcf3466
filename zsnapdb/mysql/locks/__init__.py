"""Lock strategies, one file each, and how to get one by name.

A new strategy is a file with a class, its line in `_REGISTRY`, and a test.
"""

from __future__ import annotations

from zsnapdb.mysql.locks.base import HeldLock, Strategy, Terms, held
from zsnapdb.mysql.locks.ftwrl import GlobalReadLock
from zsnapdb.mysql.locks.instance import InstanceLock
from zsnapdb.mysql.locks.none import NoLock
from zsnapdb.mysql.locks.percona import TableBackupLock
from zsnapdb.mysql.locks.stage import BackupStage
from zsnapdb.mysql.locks.watchdog import Watchdog
from zsnapdb.planning.backup.lock_strategy import LockProperties

__all__ = [
    "STATEMENTS",
    "STRATEGIES",
    "GlobalReadLock",
    "HeldLock",
    "Strategy",
    "Terms",
    "Watchdog",
    "held",
    "properties",
    "strategy",
]

_REGISTRY: tuple[type[Strategy], ...] = (
    BackupStage,
    InstanceLock,
    NoLock,
    TableBackupLock,
    GlobalReadLock,
)
"""In the order in which they are preferred: the first that is enough for a server is taken."""

STRATEGIES: tuple[LockProperties, ...] = tuple(kind.properties for kind in _REGISTRY)
"""What each strategy is, in the order of preference."""

STATEMENTS: tuple[str, ...] = tuple(lock.statement for lock in STRATEGIES if lock.statement)
"""What a server is asked for: does its parser understand the statement?"""


def properties(name: str) -> LockProperties:
    """Return what the strategy of that name is."""
    return next(lock for lock in STRATEGIES if lock.name == name)


def strategy(name: str, *, longest: float, kill: str) -> Strategy:
    """Return the strategy of that name.

    For one that waits for statements: `longest` is how many seconds a statement may have been running, `kill` which
    statements it may end (never, select, all).
    """
    return next(kind for kind in _REGISTRY if kind.properties.name == name)(longest, kill)
