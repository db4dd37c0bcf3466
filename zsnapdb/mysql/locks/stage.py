"""BACKUP STAGE (MariaDB 10.4.1+): commits, DDL and non-transactional writes wait.

The lock waits for no reader and no InnoDB writer.
"""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties


class BackupStage(Strategy):
    """MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands". Needs RELOAD. The binlog position is frozen."""

    properties = LockProperties(
        name="stage",
        merit="BACKUP STAGE BLOCK_COMMIT freezes every engine and the position, and waits for no reader",
        waits="commits, DDL and writes to other engines",
        statement="BACKUP STAGE START",
        privileges=("RELOAD",),
    )
    acquire = (properties.statement, "BACKUP STAGE BLOCK_COMMIT")
    release = ("BACKUP STAGE END",)
