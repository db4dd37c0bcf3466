"""BACKUP STAGE (MariaDB 10.4.1+): commits, DDL and non-transactional writes wait; no reader and no InnoDB writer is waited for."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy


class BackupStage(Strategy):
    """MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands". Needs RELOAD. The binlog position is frozen."""

    name = "stage"
    acquire = ("BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT")
    release = ("BACKUP STAGE END",)
