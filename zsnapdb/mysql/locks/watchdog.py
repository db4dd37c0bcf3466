"""Ends the connection of a lock at its deadline, from a second connection: the first may be stuck."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zsnapdb.base.errors import ServerError

if TYPE_CHECKING:
    from zsnapdb.mysql.session import Session


class Watchdog:
    """Guards one lock at a time. Nothing else may use `session` while a lock is guarded."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.has_fired = False

    @contextlib.contextmanager
    def guarding(self, connection_id: int, seconds: float) -> Iterator[None]:
        """Kill the connection if the block has not ended after `seconds`.

        After the block nothing is killed any more.
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
        # The connection may have ended by itself just now; then there is nothing to kill.
        with contextlib.suppress(ServerError):
            self.session.query(f"KILL {connection_id}")
