"""The binlogs of a server: their names, their readers, and their removal."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.mysql.session import Session


@dataclass(frozen=True)
class BinlogReader:
    """A connection that sends binlogs to a replica: the replica's account and host, and the state of the connection."""

    user: str
    host: str
    state: str


def names(session: Session) -> list[str]:
    """Return the names of the server's binlogs, oldest first."""
    return [str(row[0]) for row in session.query("SHOW BINARY LOGS")]


def total_size(session: Session) -> int:
    """Return the size of all binlogs of the server in bytes. ServerError if it writes none."""
    return sum(int(row[1]) for row in session.query("SHOW BINARY LOGS"))


def purge_before(session: Session, name: str) -> None:
    """Remove the binlogs before the named one. ServerError if the server refuses."""
    session.query("PURGE BINARY LOGS TO %s", (name,))


def readers(session: Session) -> list[BinlogReader]:
    """Return the connections that send binlogs to replicas. Needs PROCESS to see those of other accounts."""
    rows = session.query(
        "SELECT user, host, state FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%%'", ()
    )
    return [BinlogReader(str(user), str(host), str(state)) for user, host, state in rows]
