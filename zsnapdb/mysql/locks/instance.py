"""LOCK INSTANCE FOR BACKUP (MySQL 8.0.3+): blocks no DML; keeps file creation, removal and DDL out."""

from __future__ import annotations

from zsnapdb.mysql.session import Session


class InstanceLock:
    """Refman 8.4, "LOCK INSTANCE FOR BACKUP". Needs BACKUP_ADMIN. Freezes no position."""

    name = "instance"
    acquire: tuple[str, ...] = ("LOCK INSTANCE FOR BACKUP",)
    release: tuple[str, ...] = ("UNLOCK INSTANCE",)

    def prepare(self, session: Session) -> None:
        pass
