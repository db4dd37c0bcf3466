"""Who is connected to a server."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.mysql.session import Session


@dataclass(frozen=True)
class ServerUse:
    """The clients connected now, this one left out, and how many connections there have been since the server's start."""

    clients: int
    connections: int


def server_use(session: Session) -> ServerUse:
    """Return who uses the server. Threads of the server itself are no clients."""
    clients = int(
        session.value(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() "
            "AND user NOT IN ('system user', 'event_scheduler', 'unauthenticated user')"
        )
    )
    ((_, connections),) = session.query("SHOW GLOBAL STATUS LIKE 'Connections'")
    return ServerUse(clients, int(connections))
