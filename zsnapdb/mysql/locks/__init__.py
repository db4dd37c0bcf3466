"""Lock strategies, one file each, and how to get one by name."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Hold, Strategy, held

__all__ = ["Hold", "Strategy", "held", "strategy"]


def strategy(name: str, deadline: float) -> Strategy:
    """Return the strategy of that name; `deadline` in seconds is what the configuration allows."""
    from zsnapdb.mysql.locks.ftwrl import GlobalReadLock
    from zsnapdb.mysql.locks.instance import InstanceLock
    from zsnapdb.mysql.locks.stage import BackupStage

    made: dict[str, Strategy] = {"instance": InstanceLock(), "stage": BackupStage(), "ftwrl": GlobalReadLock(deadline)}
    return made[name]
