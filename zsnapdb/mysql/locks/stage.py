"""BACKUP STAGE (MariaDB 10.4.1+): commits, DDL and non-transactional writes wait; no reader and no InnoDB writer is waited for."""

from __future__ import annotations

from zsnapdb.mysql.session import Session


class BackupStage:
    """MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands". Needs RELOAD. The binlog position is frozen."""

    name = "stage"
    acquire: tuple[str, ...] = ("BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT")
    release: tuple[str, ...] = ("BACKUP STAGE END",)

    def prepare(self, session: Session) -> None:
        pass
