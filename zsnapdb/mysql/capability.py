"""What a server's parser understands, found by offering it statements it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.errors import ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import Capability, Dialect

_POSITION = ("SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
_CHANNELS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_STOP = ("STOP ALL SLAVES SQL_THREAD", "STOP REPLICA SQL_THREAD", "STOP SLAVE SQL_THREAD")
_START = ("START ALL SLAVES SQL_THREAD", "START REPLICA SQL_THREAD", "START SLAVE SQL_THREAD")
"""In the order they are offered. MariaDB's ALL SLAVES forms come first: its other ones speak of one connection only."""


def capabilities(session: Session) -> frozenset[Capability]:
    """Return what the server understands. Nothing is executed."""
    return frozenset(capability for capability in Capability if session.understands(capability.value))


def dialect(session: Session) -> Dialect:
    """Return the forms this server understands. ServerError names the statement if it knows none."""
    return Dialect(*(_first_understood(session, forms) for forms in (_POSITION, _CHANNELS, _STOP, _START)))


def _first_understood(session: Session, forms: Sequence[str]) -> str:
    for form in forms:
        if session.understands(form):
            return form
    raise ServerError(
        f"the server on {session.address} understands none of {', '.join(forms)}", hint="it is newer than this zsnapdb; please report its version"
    )


@dataclass(frozen=True)
class Known:
    """A statement and the servers that have it: `since` inclusive, `until` exclusive (empty: still there), and who says so."""

    statement: str
    family: str
    since: str
    until: str
    source: str


KNOWN = (
    Known("LOCK INSTANCE FOR BACKUP", "MySQL, Percona Server", "8.0.3", "", "refman 8.0, 'LOCK INSTANCE FOR BACKUP'; release notes 8.0.3"),
    Known("LOCK TABLES FOR BACKUP", "Percona Server", "5.6.16", "", "Percona Server 8.4 manual, 'Backup locks'"),
    Known("BACKUP STAGE", "MariaDB", "10.4.1", "", "MariaDB manual, 'BACKUP STAGE'; MDEV-5336"),
    Known("SHOW BINARY LOG STATUS", "MySQL, Percona Server", "8.2.0", "", "refman 8.4, 'SHOW BINARY LOG STATUS'; release notes 8.2.0"),
    Known("SHOW BINLOG STATUS", "MariaDB", "10.5.2", "", "MariaDB manual, 'SHOW BINLOG STATUS'"),
    Known("SHOW MASTER STATUS", "MySQL, Percona Server", "3.23", "8.4.0", "release notes 8.2.0 (deprecated) and 8.4.0 (removed)"),
    Known("SHOW MASTER STATUS", "MariaDB", "5.1", "", "MariaDB manual, 'SHOW BINLOG STATUS'"),
    Known("SHOW REPLICA STATUS", "MySQL, Percona Server", "8.0.22", "", "release notes 8.0.22"),
    Known("SHOW SLAVE STATUS", "MySQL, Percona Server", "3.23", "8.4.0", "release notes 8.0.22 (deprecated) and 8.4.0 (removed)"),
    Known("SHOW ALL SLAVES STATUS", "MariaDB", "10.0.1", "", "MariaDB manual, 'SHOW REPLICA STATUS'"),
    Known("STOP REPLICA", "MySQL, Percona Server", "8.0.22", "", "release notes 8.0.22"),
    Known("STOP SLAVE", "MySQL, Percona Server", "3.23", "8.4.0", "release notes 8.4.0"),
    Known("STOP ALL SLAVES", "MariaDB", "10.0.1", "", "MariaDB manual, 'STOP REPLICA'"),
)
"""Which server has what, from the manuals. For people, and for the answers the unit tests replay; a live server is asked instead."""
