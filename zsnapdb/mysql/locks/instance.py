"""LOCK INSTANCE FOR BACKUP (MySQL 8.0.3+): blocks no DML; keeps file creation, removal and DDL out."""

from __future__ import annotations

from zsnapdb.mysql.session import Session


class InstanceLock:
    """Refman 8.4, "LOCK INSTANCE FOR BACKUP". Needs BACKUP_ADMIN. Freezes no position."""

    name = "instance"

    def acquire(self, session: Session) -> None:
        session.query("LOCK INSTANCE FOR BACKUP")

    def release(self, session: Session) -> None:
        session.query("UNLOCK INSTANCE")
