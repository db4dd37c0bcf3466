"""Lock strategies and their registry.

A new strategy needs a class, a line in `_REGISTRY`, and a test.
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

_REGISTRY: tuple[type[Strategy], ...] = (BackupStage, InstanceLock, NoLock, TableBackupLock, GlobalReadLock)
"""The strategies in order of preference: the first sufficient one for a server is used."""

STRATEGIES: tuple[LockProperties, ...] = tuple(kind.properties for kind in _REGISTRY)
"""Properties of each strategy, in order of preference."""

STATEMENTS: tuple[str, ...] = tuple(lock.statement for lock in STRATEGIES if lock.statement)
"""Lock statements; each server's parser is queried for them."""


def properties(name: str) -> LockProperties:
    """Return the properties of the named strategy."""
    return next(lock for lock in STRATEGIES if lock.name == name)


def strategy(name: str, *, longest: float, kill: str) -> Strategy:
    """Return the named strategy.

    `longest` and `kill` are those of `Strategy`.
    """
    return next(kind for kind in _REGISTRY if kind.properties.name == name)(longest, kill)
