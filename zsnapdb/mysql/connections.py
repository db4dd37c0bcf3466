"""The connections of a server."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.mysql.session import Session


@dataclass(frozen=True)
class ServerUse:
    """The number of other clients connected now, and of all connections since the start of the server."""

    clients: int
    connections: int


def server_use(session: Session) -> ServerUse:
    """Return how many clients use the server. Threads of the server itself do not count."""
    clients = int(
        session.value(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() "
            "AND user NOT IN ('system user', 'event_scheduler', 'unauthenticated user')"
        )
    )
    ((_, connections),) = session.query("SHOW GLOBAL STATUS LIKE 'Connections'")
    return ServerUse(clients, int(connections))
