"""BACKUP STAGE (MariaDB 10.4.1+): commits, DDL and non-transactional writes wait; no reader and no InnoDB writer is waited for."""

from __future__ import annotations

from zsnapdb.mysql.session import Session


class BackupStage:
    """MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands". Needs RELOAD. The binlog position is frozen."""

    name = "stage"

    def acquire(self, session: Session) -> None:
        session.query("BACKUP STAGE START")
        session.query("BACKUP STAGE BLOCK_COMMIT")

    def release(self, session: Session) -> None:
        session.query("BACKUP STAGE END")
