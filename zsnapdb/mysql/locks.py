"""The strategies for locking a server, and the registry of these strategies.

A new strategy needs a class, a line in `_REGISTRY`, and a test.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zsnapdb.base.errors import LockError, LockNotGranted, ServerError
from zsnapdb.planning.backup.lock_strategy import LockProperties, Statement, long_statements, to_kill
from zsnapdb.planning.server_facts import ServerFacts

if TYPE_CHECKING:
    from zsnapdb.mysql.session import Session


class Watchdog:
    """Guards one lock at a time. During that time, no other code may use `session`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.has_fired = False

    @contextlib.contextmanager
    def guarding(self, connection_id: int, seconds: float) -> Iterator[None]:
        """Kill the locking connection if the `with` block has not ended after `seconds`.

        After the block, the watchdog kills no connection.
        """
        self.has_fired = False
        done = threading.Event()
        thread = threading.Thread(target=self._wait_and_kill, args=(done, connection_id, seconds), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _wait_and_kill(self, done: threading.Event, connection_id: int, seconds: float) -> None:
        if done.wait(seconds):
            return
        self.has_fired = True
        # The connection may have just ended.
        with contextlib.suppress(ServerError):
            self.session.query(f"KILL {connection_id}")


_INTERRUPTED = "(1317)"


class Strategy:
    """A way to lock a server. The server grants the lock with the last statement of `acquire`.

    Strategies that wait for running statements use `longest` and `kill`. If a statement has been running for more than
    `longest` seconds, the lock is not requested. `kill` says which statements the strategy may end (never, select,
    all).
    """

    properties: LockProperties
    acquire: tuple[str, ...]
    release: tuple[str, ...]

    def __init__(self, longest: float, kill: str) -> None:
        self.longest = longest
        self.kill = kill

    def prepare(self, session: Session) -> None:
        """Do slow work before the lock is acquired. Raises LockNotGranted if the lock should not be requested now."""

    def given_up(self, session: Session, waited: float) -> str:  # noqa: ARG002 - for those that leave something
        """Clean up, over another connection, after an attempt that did not get the lock within `waited` seconds.

        Return a text about leftovers on the server; empty if nothing is left.
        """
        return ""


@dataclass(frozen=True)
class LockTimeouts:
    """Time limits of a lock in seconds.

    `deadline` limits the time from the first lock statement to the release, and `patience` the time from the first lock
    statement until the lock is granted.
    """

    deadline: float
    patience: float


@dataclass
class HeldLock:
    """A granted lock, which must be released before `until` (monotonic seconds)."""

    until: float
    held_ms: float = 0.0

    def remaining(self) -> float:
        return self.until - time.monotonic()


@contextmanager
def holding(strategy: Strategy, session: Session, watchdog: Watchdog, terms: LockTimeouts) -> Iterator[HeldLock]:
    """Hold the lock during a `with` block. After the block, the lock is released or its connection is closed.

    Three limits restrict how long the lock is held. Each statement waits only for the remaining time (lock_wait_timeout
    has whole seconds, at least one). At the deadline, the watchdog kills the connection through another connection. If
    this process is frozen, the server ends the idle connection after wait_timeout. After the block, `held_ms` of the
    yielded HeldLock is the time in milliseconds from the first lock statement to the server's answer to the release.

    Raises LockNotGranted if the lock could not be acquired, and LockError if the lock was lost. The connection is never
    reopened, so a successful release proves that the lock was never lost.
    """
    strategy.prepare(session)
    patience = _whole_seconds(min(terms.deadline, terms.patience))
    # A stopped or frozen client cannot keep the lock, because the server ends its idle connection. One statement sets
    # this timeout before the first lock statement, because any later statement would prolong the lock.
    session.query(f"SET SESSION wait_timeout = {math.ceil(terms.deadline) + 1}, SESSION lock_wait_timeout = {patience}")
    started = time.monotonic()
    try:
        with watchdog.guarding(session.connection_id, terms.deadline):
            # The start of the watchdog's thread does not count as lock time.
            started = time.monotonic()
            until = started + terms.deadline
            _acquire(strategy, session, watchdog, started + min(terms.deadline, terms.patience), terms, patience)
            hold = HeldLock(until)
            yield hold
            _release(strategy, session)
            hold.held_ms = (time.monotonic() - started) * 1000
        if not session.is_same_connection():
            raise LockError(
                "the connection that held the lock was lost before the snapshot was confirmed to be consistent",
                hint="the snapshot is discarded; run again",
            )
    except BaseException as error:
        # The server releases the lock when the connection closes. An error from an explicit release would hide the
        # first error.
        session.close()
        if isinstance(error, LockNotGranted):
            raise LockNotGranted(
                error.message + _left_behind(strategy, watchdog, time.monotonic() - started), hint=error.hint
            ) from error
        raise


def _left_behind(strategy: Strategy, watchdog: Watchdog, waited: float) -> str:
    """Return a text for the error message that describes the leftovers of a failed attempt on the server.

    If this cannot be determined, the text contains the reason.
    """
    try:
        return strategy.given_up(watchdog.session, waited)
    except ServerError as error:
        return f"; and its leftovers could not be checked: {error.message}"


def _whole_seconds(left: float) -> int:
    """Return the lock_wait_timeout in whole seconds for a statement that may use slightly less than `left` seconds."""
    return max(1, math.ceil(left) - 1)


def _acquire(
    strategy: Strategy, session: Session, watchdog: Watchdog, until: float, terms: LockTimeouts, patience: int
) -> None:
    """Acquire the lock. `patience` is the current value of lock_wait_timeout."""
    for statement in strategy.acquire:
        left = until - time.monotonic()
        if left <= 0:
            raise LockNotGranted(
                f"there was no time left for `{statement}` within {min(terms.deadline, terms.patience):g} s",
                hint="the server is busy; or raise lock.deadline",
            )
        try:
            if _whole_seconds(left) < patience:
                patience = _whole_seconds(left)
                session.query(f"SET SESSION lock_wait_timeout = {patience}")
            session.query(statement)
        except ServerError as error:
            if watchdog.has_fired and not isinstance(error, LockNotGranted):
                raise LockNotGranted(
                    f"`{statement}` was still waiting at lock.deadline = {terms.deadline:g} s and was ended",
                    hint="a long statement or DDL is in the way: see `SHOW PROCESSLIST`",
                ) from error
            if _INTERRUPTED in error.message:
                raise LockNotGranted(
                    error.message, hint="somebody ended the statement: see `SHOW PROCESSLIST`"
                ) from error
            raise


def _release(strategy: Strategy, session: Session) -> None:
    for statement in strategy.release:
        try:
            session.query(statement)
        except ServerError as error:
            raise LockError(
                f"the lock was lost before the snapshot was confirmed to be consistent: {error.message}",
                hint="the snapshot is discarded; see who killed the connection in the server's log, then run again",
            ) from error


_SECONDS_TO_DIE = 2.0
_NO_SUCH_THREAD = "(1094)"


class GlobalReadLock(Strategy):
    """FLUSH TABLES WITH READ LOCK (refman 8.4).

    The account needs RELOAD. The lock waits for every running statement, including SELECT. During that time, new write
    statements already wait for the lock. On MySQL, tables stay marked for flush after an abandoned attempt. Statements
    on these tables then wait until the blocking statement ends (observed on 9.7: 57 s behind a SELECT after an attempt
    of 1 s). Therefore the lock is not requested if a statement has already been running for `longest` seconds. If a
    younger statement blocks the lock, the strategy ends that statement if `kill` (never, select, all) allows this.
    Otherwise, it reports the statement.
    """

    properties = LockProperties(
        name="ftwrl", merit="", waits="every write", writers_wait=True, privileges=("RELOAD", "FLUSH_TABLES")
    )
    # A preceding flush without a lock shortens the flush with the lock.
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
        # Only reading statements count, because a write of that age may itself have waited for this attempt. If a write
        # blocked the lock, `prepare` detects the write before the next attempt.
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
    """LOCK INSTANCE FOR BACKUP (refman 8.4). The account needs BACKUP_ADMIN. The lock does not freeze the position."""

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
    """No lock.

    This is enough for servers on which all user tables and DDL are crash-safe (planning/backup/lock_strategy.py).

    A connection is still opened before the snapshot and checked afterwards, to detect a restart of the server.
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
    """Return why the server would refuse the lock: delay_key_write is ALL (Percona Server manual, "Backup locks")."""
    if facts.variables.get("delay_key_write", "").upper() != "ALL":
        return None
    return "LOCK TABLES FOR BACKUP is refused under delay_key_write = ALL: set it to ON or OFF"


class TableBackupLock(Strategy):
    """LOCK TABLES FOR BACKUP (Percona Server 8.4 manual, "Backup locks").

    The account needs BACKUP_ADMIN (8.0.13+) or RELOAD. This lock freezes neither InnoDB writes nor the position.
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
    """BACKUP STAGE (MariaDB manual, "Storage Snapshots and BACKUP STAGE Commands"). The account needs RELOAD.

    The stage freezes the position.
    """

    properties = LockProperties(
        name="stage",
        merit="commits wait for the snapshot (BACKUP STAGE BLOCK_COMMIT), so the position is exact; reads go on",
        waits="commits, DDL and writes to other engines",
        statement="BACKUP STAGE START",
        privileges=("RELOAD",),
    )
    acquire = (properties.statement, "BACKUP STAGE BLOCK_COMMIT")
    release = ("BACKUP STAGE END",)


__all__ = [
    "STATEMENTS",
    "STRATEGIES",
    "GlobalReadLock",
    "HeldLock",
    "LockTimeouts",
    "Strategy",
    "Watchdog",
    "holding",
    "properties",
    "strategy",
]

_REGISTRY: tuple[type[Strategy], ...] = (BackupStage, InstanceLock, NoLock, TableBackupLock, GlobalReadLock)
"""The strategies in order of preference. The first strategy that suffices for a server is used."""

STRATEGIES: tuple[LockProperties, ...] = tuple(kind.properties for kind in _REGISTRY)
"""The properties of each strategy, in order of preference."""

STATEMENTS: tuple[str, ...] = tuple(lock.statement for lock in STRATEGIES if lock.statement)
"""Lock statements. `probe` tests which of these statements a server's parser understands."""


def properties(name: str) -> LockProperties:
    """Return the properties of the named strategy."""
    return next(lock for lock in STRATEGIES if lock.name == name)


def strategy(name: str, *, longest: float, kill: str) -> Strategy:
    """Return the named strategy.

    `longest` and `kill` have the same meaning as in `Strategy`.
    """
    return next(kind for kind in _REGISTRY if kind.properties.name == name)(longest, kill)
