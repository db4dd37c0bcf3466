"""The statements that the parser of a server understands; PREPARE tests this without running them."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql import locks
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import Dialect

_POSITION = ("SHOW BINARY LOG STATUS", "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
_CHANNELS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_STOP = ("STOP REPLICA SQL_THREAD", "STOP SLAVE SQL_THREAD")
_START = ("START REPLICA SQL_THREAD", "START SLAVE SQL_THREAD")
"""The forms in the order in which they are tried.

MariaDB's SHOW ALL SLAVES STATUS comes first: the other forms of MariaDB show one connection only.
"""


def lock_statements(session: Session) -> frozenset[str]:
    """Return the lock statements that the server understands. No statement is executed."""
    return frozenset(statement for statement in locks.STATEMENTS if session.understands(statement))


def dialect(session: Session) -> Dialect:
    """Return the forms that this server understands. ServerError if it understands no form of a statement."""
    return Dialect(*(_first_understood(session, forms) for forms in (_POSITION, _CHANNELS, _STOP, _START)))


def binlog_status(session: Session) -> dict[str, str]:
    """Return what the server says about its binlog: File, Position and the filters; empty if it writes none."""
    records = session.records(_first_understood(session, _POSITION))
    return {key: str(value or "") for key, value in records[0].items()} if records else {}


def _first_understood(session: Session, forms: Sequence[str]) -> str:
    for form in forms:
        if session.understands(form):
            return form
    raise ServerError(
        f"the server on {session.address} understands none of {', '.join(forms)}",
        hint="it is newer than this zsnapdb; please report its version",
    )
