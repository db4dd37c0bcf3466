"""Lock strategies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zsnapdb.base.errors import LockNotGranted, ServerError
from zsnapdb.mysql.locks.base import Strategy
from zsnapdb.planning.backup.lock_strategy import LockProperties, Statement, long_statements, to_kill
from zsnapdb.planning.server_facts import ServerFacts

if TYPE_CHECKING:
    from zsnapdb.mysql.session import Session


_SECONDS_TO_DIE = 2.0
_NO_SUCH_THREAD = "(1094)"


class GlobalReadLock(Strategy):
    """FLUSH TABLES WITH READ LOCK (refman 8.4). Needs RELOAD. Waits for every running statement, SELECTs too.

    While the lock waits, new writers already wait for it. On MySQL an abandoned attempt leaves tables marked for flush.
    Statements on these tables wait until the blocking statement ends (observed on 9.7: 57 s behind a SELECT after an
    attempt of 1 s). So the lock is not tried while a statement has been running for `longest` seconds. If a younger
    statement blocks the lock, the strategy ends it if `kill` (never, select, all) allows this, and otherwise reports
    it.
    """

    properties = LockProperties(
        name="ftwrl", merit="", waits="every write", writers_wait=True, privileges=("RELOAD", "FLUSH_TABLES")
    )
    # A first flush without lock makes the flush with lock short.
    acquire = ("FLUSH NO_WRITE_TO_BINLOG TABLES", "FLUSH TABLES WITH READ LOCK")
    release = ("UNLOCK TABLES",)

    def prepare(self, session: Session) -> None:
        waiting = self._in_the_way(session)
        for statement in to_kill(waiting, self.kill):
            _kill(session, statement)
        if waiting and self.kill != "never":
            until = time.monotonic() + _SECONDS_TO_DIE
            while waiting and time.monotonic() < until:
                time.sleep(0.05)
                waiting = self._in_the_way(session)
        if waiting:
            raise LockNotGranted(
                "the global read lock is not tried: the lock, and every writer after it, would wait for"
                f" {waiting[0].describe()}",
                hint=(
                    "wait for the statement to end, kill it (`KILL QUERY`), raise lock.budget to wait longer, or set"
                    " lock.kill"
                ),
            )

    def given_up(self, session: Session, waited: float) -> str:
        # Only reading statements count: a write of that age may have waited for this attempt. If a write blocked the
        # lock, `prepare` of the next attempt sees it.
        waiting = [statement for statement in self._in_the_way(session, max(1.0, waited)) if statement.only_reads]
        killed = to_kill(waiting, self.kill)
        for statement in killed:
            _kill(session, statement)
        left = [statement for statement in waiting if statement not in killed]
        return (
            f"; statements on the same tables may wait until this statement ends: {left[0].describe()}" if left else ""
        )

    def _in_the_way(self, session: Session, longest: float | None = None) -> list[Statement]:
        processes = session.records("SHOW FULL PROCESSLIST")
        return long_statements(
            processes, frozenset({session.connection_id}), self.longest if longest is None else longest
        )


def _kill(session: Session, statement: Statement) -> None:
    try:
        session.query(f"KILL QUERY {statement.connection_id}")
    except ServerError as error:
        # The statement has just ended.
        if _NO_SUCH_THREAD not in error.message:
            raise


class InstanceLock(Strategy):
    """LOCK INSTANCE FOR BACKUP (refman 8.4). Needs BACKUP_ADMIN. Does not freeze the position."""

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


class NoLock(Strategy):
    """No lock, for servers whose user tables and DDL all survive a crash; see planning/backup/lock_strategy.py.

    A connection is still opened before and checked after the snapshot, so a restart of the server is noticed.
    """

    properties = LockProperties(
        name="none",
        merit="crash-safe tables and atomic DDL need no lock",
        waits="nothing",
        needs_crash_safe=True,
        holds_ddl=False,
    )
    acquire = ()
    release = ("DO 0",)


def _refusal(facts: ServerFacts) -> str | None:
    """Return why the server refuses the lock: delay_key_write = ALL (Percona Server manual, "Backup locks")."""
    if facts.variables.get("delay_key_write", "").upper() != "ALL":
        return None
    return "LOCK TABLES FOR BACKUP is refused under delay_key_write = ALL: set it to ON or OFF"


class TableBackupLock(Strategy):
    """LOCK TABLES FOR BACKUP (Percona Server 8.4 manual, "Backup locks").

    Needs BACKUP_ADMIN (8.0.13+) or RELOAD. Freezes neither InnoDB writes nor the position.
    """

    properties = LockProperties(
        name="percona",
        merit="LOCK TABLES FOR BACKUP holds DDL and other engines, and waits for no reader",
        waits="DDL and writes to other engines",
        statement="LOCK TABLES FOR BACKUP",
        refused=_refusal,
        privileges=("BACKUP_ADMIN", "RELOAD"),
    )
    acquire = (properties.statement,)
    release = ("UNLOCK TABLES",)


class BackupStage(Strategy):
    """BACKUP STAGE (MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands"). Needs RELOAD, freezes position."""

    properties = LockProperties(
        name="stage",
        merit="BACKUP STAGE BLOCK_COMMIT freezes every engine and the position, and waits for no reader",
        waits="commits, DDL and writes to other engines",
        statement="BACKUP STAGE START",
        privileges=("RELOAD",),
    )
    acquire = (properties.statement, "BACKUP STAGE BLOCK_COMMIT")
    release = ("BACKUP STAGE END",)
