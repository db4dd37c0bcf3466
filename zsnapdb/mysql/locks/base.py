"""What every lock strategy does, and how one is held: by one owned connection, to a deadline, on every way out released."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.errors import LockError
from zsnapdb.mysql.session import Session


class Strategy(Protocol):
    """A way to hold a server still. `name` is stored in the manifest; after the last of `acquire` the lock is had."""

    name: str
    acquire: tuple[str, ...]
    release: str

    def prepare(self, session: Session) -> None:
        """Do what may be slow, before anything is held; LockError if the lock should not be tried now."""


@dataclass
class Hold:
    """A lock that is held since `since` and must be gone at `until` (both monotonic seconds)."""

    session: Session
    since: float
    until: float
    held_ms: float = 0.0

    def remaining(self) -> float:
        """Return the seconds left."""
        return self.until - time.monotonic()

    def check(self) -> None:
        """Raise LockError unless the connection that took the lock is alive, so that the lock was held until now."""
        if not self.session.is_same_connection():
            raise LockError(
                "the connection that held the lock was lost before the snapshot was proved",
                hint="the snapshot is discarded; see who killed it in the server's log, then run again",
            )


@contextmanager
def held(strategy: Strategy, session: Session, deadline: float) -> Iterator[Hold]:
    """Hold the lock for the block, which must end within `deadline` seconds of the start of acquiring it.

    Each statement may wait only for what is left (lock_wait_timeout has whole seconds, at least one). However the block
    ends the lock is gone afterwards: released, or its connection closed. `held_ms` of the yielded Hold is then the
    milliseconds from the first statement that may hold something up to the release.
    """
    strategy.prepare(session)
    started = time.monotonic()
    until = started + deadline
    try:
        # A client that is stopped or frozen cannot keep the lock: the server ends its idle connection.
        session.query(f"SET SESSION wait_timeout = {math.ceil(deadline) + 1}")
        for statement in strategy.acquire:
            left = until - time.monotonic()
            if left <= 0:
                raise LockError(f"`{statement}` was not reached within lock.deadline = {deadline:g} s", hint="the server is busy; or raise lock.deadline")
            session.query(f"SET SESSION lock_wait_timeout = {max(1, math.floor(left))}")
            session.query(statement)
        hold = Hold(session, started, until)
        yield hold
        session.query(strategy.release)
        hold.held_ms = (time.monotonic() - started) * 1000
        session.query("SET SESSION wait_timeout = DEFAULT")
    except BaseException:
        # The server drops the lock with the connection; a release that fails would hide the first error.
        session.close()
        raise
