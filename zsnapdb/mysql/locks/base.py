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
    """A way to hold a server still. `name` is stored in the manifest."""

    name: str

    def acquire(self, session: Session) -> None:
        """Take the lock; every wait is bounded by the session's lock_wait_timeout."""

    def release(self, session: Session) -> None:
        """Let go."""


@dataclass
class Hold:
    """A lock that is held since `since` (monotonic seconds) and must be gone `deadline` seconds later."""

    session: Session
    since: float
    deadline: float
    held_ms: float = 0.0

    def remaining(self) -> float:
        """Return the seconds left."""
        return self.since + self.deadline - time.monotonic()

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

    However the block ends the lock is gone afterwards: released, or its connection closed. `held_ms` of the
    yielded Hold is then the time in milliseconds from the moment the lock was had to the moment it was let go.
    """
    session.query(f"SET SESSION lock_wait_timeout = {max(1, math.floor(deadline))}")
    started = time.monotonic()
    try:
        strategy.acquire(session)
        hold = Hold(session, time.monotonic(), started + deadline - time.monotonic())
        try:
            yield hold
        finally:
            strategy.release(session)
            hold.held_ms = (time.monotonic() - hold.since) * 1000
    except BaseException:
        session.close()
        raise
