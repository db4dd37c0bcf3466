"""LOCK TABLES FOR BACKUP (Percona Server): blocks DDL and non-transactional writes; waits for no reader."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties
from zsnapdb.planning.facts import ServerFacts


def _refused(facts: ServerFacts) -> str | None:
    """Return why the server refuses the lock: delay_key_write = ALL (Percona Server manual, "Backup locks")."""
    if facts.variables.get("delay_key_write", "").upper() != "ALL":
        return None
    return "LOCK TABLES FOR BACKUP is refused under delay_key_write = ALL: set it to ON or OFF"


class TableBackupLock(Strategy):
    """Percona Server 8.4 manual, "Backup locks".

    Needs BACKUP_ADMIN (8.0.13+) or RELOAD. Freezes no InnoDB write and no position.
    """

    properties = LockProperties(
        name="percona",
        merit="LOCK TABLES FOR BACKUP holds DDL and other engines, and waits for no reader",
        waits="DDL and writes to other engines",
        statement="LOCK TABLES FOR BACKUP",
        refused=_refused,
        privileges=("BACKUP_ADMIN", "RELOAD"),
    )
    acquire = (properties.statement,)
    release = ("UNLOCK TABLES",)
