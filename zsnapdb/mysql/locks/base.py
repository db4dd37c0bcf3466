"""What every lock strategy does, and how one is held: by one owned connection, to a deadline, on every way out released."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from zsnapdb.errors import LockError, LockNotGranted, ServerError
from zsnapdb.mysql.locks.watchdog import Watchdog
from zsnapdb.mysql.session import Session
from zsnapdb.planning.backup.lock_strategy import LockProperties

_INTERRUPTED = "(1317)"


class Strategy:
    """A way to hold a server still. `properties` says what it is; after the last of `acquire` the lock is granted.

    `longest` and `kill` matter to those alone that wait for statements: for how many seconds a statement may have been
    running when the lock is tried, and which statements may be ended (never, select, all).
    """

    properties: LockProperties
    acquire: tuple[str, ...]
    release: tuple[str, ...]

    def __init__(self, longest: float, kill: str) -> None:
        self.longest = longest
        self.kill = kill

    def prepare(self, session: Session) -> None:
        """Do what may be slow, before anything is held; LockNotGranted if the lock should not be tried now."""

    def given_up(self, session: Session, waited: float) -> str:  # noqa: ARG002 - for those that leave something
        """Undo, from another connection, what an attempt of `waited` seconds that was not granted may have left.

        Return what is left, or nothing.
        """
        return ""


@dataclass(frozen=True)
class Terms:
    """How long a lock may last, in seconds: `deadline` from the first statement to the release, `patience` until it is granted."""

    deadline: float
    patience: float


@dataclass
class HeldLock:
    """A lock that is held and must be gone at `until` (monotonic seconds)."""

    until: float
    held_ms: float = 0.0

    def remaining(self) -> float:
        """Return the seconds left."""
        return self.until - time.monotonic()


@contextmanager
def held(strategy: Strategy, session: Session, watchdog: Watchdog, terms: Terms) -> Iterator[HeldLock]:
    """Hold the lock for the block.

    However the block ends the lock is gone afterwards: released, or its connection closed.

    Three things bound it: each statement waits only for what is left (lock_wait_timeout has whole seconds, at least
    one); at the deadline the watchdog kills the connection from another one; and should this process be frozen, the
    server ends the idle connection by wait_timeout. `held_ms` of the yielded Hold is afterwards the milliseconds from
    the first statement that may hold something until the server had answered the release. LockNotGranted if it was not
    to be had, LockError if it was lost: nothing reconnects, so a release that succeeds on the same connection proves
    that it was held all along.
    """
    strategy.prepare(session)
    # A client that is stopped or frozen cannot keep the lock: the server ends its idle connection.
    session.query(f"SET SESSION wait_timeout = {math.ceil(terms.deadline) + 1}")
    started = time.monotonic()
    until = started + terms.deadline
    try:
        with watchdog.guarding(session.connection_id, terms.deadline):
            _acquire(strategy, session, watchdog, started + min(terms.deadline, terms.patience), terms)
            hold = HeldLock(until)
            yield hold
            _release(strategy, session)
            hold.held_ms = (time.monotonic() - started) * 1000
        if not session.is_same_connection():
            raise LockError(
                "the connection that held the lock was lost before the snapshot was proved",
                hint="the snapshot is discarded; run again",
            )
    except BaseException as error:
        # The server drops the lock with the connection; a release that fails would hide the first error.
        session.close()
        if isinstance(error, LockNotGranted):
            raise LockNotGranted(
                error.message + _left_behind(strategy, watchdog, time.monotonic() - started), hint=error.hint
            ) from error
        raise


def _left_behind(strategy: Strategy, watchdog: Watchdog, waited: float) -> str:
    """Return what an attempt left that was not granted, for its message.

    That it cannot be looked at does not hide the message itself.
    """
    try:
        return strategy.given_up(watchdog.session, waited)
    except ServerError as error:
        return f"; and what it left could not be looked at: {error.message}"


def _acquire(strategy: Strategy, session: Session, watchdog: Watchdog, until: float, terms: Terms) -> None:
    for statement in strategy.acquire:
        left = until - time.monotonic()
        if left <= 0:
            raise LockNotGranted(
                f"`{statement}` was not reached within {min(terms.deadline, terms.patience):g} s",
                hint="the server is busy; or raise lock.deadline",
            )
        try:
            session.query(f"SET SESSION lock_wait_timeout = {max(1, math.floor(left))}")
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
                f"the lock was lost before the snapshot was proved: {error.message}",
                hint="the snapshot is discarded; see who killed the connection in the server's log, then run again",
            ) from error
