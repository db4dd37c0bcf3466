"""LOCK TABLES FOR BACKUP (Percona Server): holds DDL and writes to non-transactional tables; waits for no reader."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy


class TableBackupLock(Strategy):
    """Percona Server 8.4 manual, "Backup locks".

    Needs BACKUP_ADMIN (8.0.13+) or RELOAD. Freezes no InnoDB write and no position.
    """

    name = "percona"
    acquire = ("LOCK TABLES FOR BACKUP",)
    release = ("UNLOCK TABLES",)
