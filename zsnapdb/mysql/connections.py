"""Client connections of a server."""

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
"""Time for killed sessions to roll back, in seconds."""


@dataclass(frozen=True)
class ServerUse:
    """Current number of other clients, and number of connections since the server's start."""

    clients: int
    connections: int


def server_use(session: Session) -> ServerUse:
    """Return the number of clients and connections, without threads of the server itself."""
    clients = int(session.value(f"SELECT COUNT(*) {_OTHERS}"))
    ((_, connections),) = session.query("SHOW GLOBAL STATUS LIKE 'Connections'")
    return ServerUse(clients, int(connections))


def end_others(session: Session, user: str | None = None) -> None:
    """End the sessions of all other clients, or of one user; their uncommitted changes are rolled back.

    Raise ServerError if one has not ended after 3 s.
    """
    query, values = (f"SELECT id {_OTHERS}", ()) if user is None else (f"SELECT id {_OTHERS} AND user = %s", (user,))
    deadline = time.monotonic() + _ENDING_SECONDS
    while others := session.query(query, values):
        if time.monotonic() > deadline:
            raise ServerError(
                f"{len(others)} sessions do not end", hint="they may roll back large transactions", about=()
            )
        for (number,) in others:
            # The session may have just ended.
            with contextlib.suppress(ServerError):
                session.query(f"KILL {int(number)}")
        time.sleep(0.01)


def wait_briefly_for_locks(session: Session, seconds: int) -> None:
    """Limit the session's waits for row and table locks; after `seconds`, a statement raises ServerError."""
    for name in ("innodb_lock_wait_timeout", "lock_wait_timeout"):
        session.query(f"SET SESSION {name} = {seconds}")


def has_prepared_transactions(session: Session) -> bool:
    """Return whether an XA transaction is prepared: it keeps its locks without a session."""
    return bool(session.query("XA RECOVER"))
