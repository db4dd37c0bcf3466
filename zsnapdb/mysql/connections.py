"""The connections of a server."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Session

_OTHERS = (
    "FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
    " AND user NOT IN ('system user', 'event_scheduler', 'unauthenticated user')"
)
_ENDING_SECONDS = 3.0
"""How long a session that was killed may roll back."""


@dataclass(frozen=True)
class ServerUse:
    """The number of other clients connected now, and of all connections since the start of the server."""

    clients: int
    connections: int


def server_use(session: Session) -> ServerUse:
    """Return how many clients use the server. Threads of the server itself do not count."""
    clients = int(session.value(f"SELECT COUNT(*) {_OTHERS}"))
    ((_, connections),) = session.query("SHOW GLOBAL STATUS LIKE 'Connections'")
    return ServerUse(clients, int(connections))


def end_others(session: Session) -> None:
    """End the sessions of all other clients; what they had not committed is rolled back.

    ServerError if one does not end in some seconds.
    """
    deadline = time.monotonic() + _ENDING_SECONDS
    while others := session.query(f"SELECT id {_OTHERS}"):
        if time.monotonic() > deadline:
            raise ServerError(f"{len(others)} sessions do not end", hint="they may roll back large transactions")
        for (number,) in others:
            # It may have ended by itself.
            with contextlib.suppress(ServerError):
                session.query(f"KILL {int(number)}")
        time.sleep(0.01)


def wait_briefly_for_locks(session: Session, seconds: int) -> None:
    """Have the session wait at most so long for a lock of a row or a table: ServerError after that."""
    for name in ("innodb_lock_wait_timeout", "lock_wait_timeout"):
        session.query(f"SET SESSION {name} = {seconds}")


def has_prepared_transactions(session: Session) -> bool:
    """Whether a transaction of XA is prepared: it keeps its locks without a session."""
    return bool(session.query("XA RECOVER"))
