"""LOCK INSTANCE FOR BACKUP (MySQL 8.0.3+): blocks no DML; keeps file creation, removal and DDL out."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties


class InstanceLock(Strategy):
    """Refman 8.4, "LOCK INSTANCE FOR BACKUP". Needs BACKUP_ADMIN. Freezes no position."""

    properties = LockProperties(
        name="instance",
        merit="blocks no write and keeps half-done DDL out; all user tables are crash-safe",
        waits="DDL and account statements",
        statement="LOCK INSTANCE FOR BACKUP",
        needs_crash_safe=True,
        falls_back=True,
        privileges=("BACKUP_ADMIN",),
    )
    acquire = (properties.statement,)
    release = ("UNLOCK INSTANCE",)
