"""Control of a server's replication channels: stop, start and remove."""

from __future__ import annotations

from collections.abc import Iterable

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.probe import channels, flavour_and_dialect
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import refuse_writes_of_users
from zsnapdb.planning.clone import topology
from zsnapdb.planning.server_facts import Dialect
from zsnapdb.planning.server_family import family


def stop(session: Session, flavour: Flavour, dialect: Dialect, names: Iterable[str]) -> None:
    """Stop the appliers of the named channels. Each statement waits for the running transaction."""
    for name in names:
        session.query(_of_channel(flavour, dialect.stop_applier, name))


def start(session: Session, flavour: Flavour, dialect: Dialect, names: Iterable[str]) -> None:
    """Start the appliers of the named channels. The server first waits for a stop that is in progress."""
    for name in names:
        session.query(_of_channel(flavour, dialect.start_applier, name))


def _of_channel(flavour: Flavour, statement: str, name: str) -> str:
    """Return the statement for the applier of one channel. The default channel has an empty name."""
    value = "'" + name.replace("'", "''") + "'"
    return (
        f"{statement.removesuffix(' SQL_THREAD')} {value} SQL_THREAD"
        if family(flavour).names_connections
        else f"{statement} FOR CHANNEL {value}"
    )


def open_temporary_tables(session: Session) -> int:
    """Return the number of temporary tables that the replica holds open for its source."""
    # The variable has an old and a new name; some servers show both.
    rows = session.query(
        "SHOW GLOBAL STATUS WHERE variable_name IN ('Slave_open_temp_tables', 'Replica_open_temp_tables')"
    )
    return max((int(row[1]) for row in rows), default=0)


def forget(session: Session) -> None:
    """Remove every replication channel, including credentials."""
    flavour, dialect = flavour_and_dialect(session)
    word = "REPLICA" if "REPLICA" in dialect.stop_applier else "SLAVE"
    configured = channels(session, dialect)
    if family(flavour).names_connections:
        for channel in configured:
            if channel.name:
                session.query(f"RESET {word} %s ALL", (channel.name,))
            else:
                session.query(f"RESET {word} ALL")
    elif configured:
        session.query(f"RESET {word} ALL")


def go_on(session: Session) -> None:
    """Resume replication at the old position. A server without a source is not changed."""
    _, dialect = flavour_and_dialect(session)
    if channels(session, dialect):
        session.query(dialect.start_applier.removesuffix(" SQL_THREAD"))
        refuse_writes_of_users(session)


def follow_neighbour(session: Session, port: int, user: str, password: str) -> None:
    """Make the server a replica of the source on this port of this host, from their current positions."""
    flavour, _ = flavour_and_dialect(session)
    if family(flavour).names_connections:
        session.query("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos")
    statements = topology.replica_statements(
        flavour,
        knows_replica=session.understands("START REPLICA SQL_THREAD") and session.understands("SHOW REPLICA STATUS"),
    )
    session.query(statements.change, (port, user, password))
    session.query(statements.start)
    # On a replica, only accounts with a special privilege can write.
    refuse_writes_of_users(session)
