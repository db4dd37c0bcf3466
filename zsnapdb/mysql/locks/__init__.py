"""Lock strategies, one file each, and their registry.

A new strategy is a file with a class, its line in `_REGISTRY`, and a test.
"""

from __future__ import annotations

from zsnapdb.mysql.locks.base import HeldLock, Strategy, Terms, Watchdog, holding
from zsnapdb.mysql.locks.strategies import BackupStage, GlobalReadLock, InstanceLock, NoLock, TableBackupLock
from zsnapdb.planning.backup.lock_strategy import LockProperties

__all__ = [
    "STATEMENTS",
    "STRATEGIES",
    "GlobalReadLock",
    "HeldLock",
    "Strategy",
    "Terms",
    "Watchdog",
    "holding",
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
"""The strategies in the order of preference: the first that is sufficient for a server is used."""

STRATEGIES: tuple[LockProperties, ...] = tuple(kind.properties for kind in _REGISTRY)
"""The properties of each strategy, in the order of preference."""

STATEMENTS: tuple[str, ...] = tuple(lock.statement for lock in STRATEGIES if lock.statement)
"""The lock statements; each server is asked whether its parser understands them."""


def properties(name: str) -> LockProperties:
    """Return the properties of the strategy of that name."""
    return next(lock for lock in STRATEGIES if lock.name == name)


def strategy(name: str, *, longest: float, kill: str) -> Strategy:
    """Return the strategy of that name.

    A strategy that waits for statements uses `longest`, how many seconds a statement may have been running, and `kill`,
    which statements the strategy may end (never, select, all).
    """
    return next(kind for kind in _REGISTRY if kind.properties.name == name)(longest, kill)
