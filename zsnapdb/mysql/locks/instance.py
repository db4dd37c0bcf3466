"""LOCK INSTANCE FOR BACKUP (MySQL 8.0.3+): blocks no DML; keeps file creation, removal and DDL out."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy


class InstanceLock(Strategy):
    """Refman 8.4, "LOCK INSTANCE FOR BACKUP". Needs BACKUP_ADMIN. Freezes no position."""

    name = "instance"
    acquire = ("LOCK INSTANCE FOR BACKUP",)
    release = ("UNLOCK INSTANCE",)
