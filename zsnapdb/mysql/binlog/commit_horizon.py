"""A time, and a place in the binlogs before which everything lies that a server commits with a time up to it.

The time is asked first, and the end of the binlog after it. A server writes a group of transactions to its binlog under
a lock (LOCK_log), and reports the end of its binlog under the same lock. MySQL 8.0.1 and newer take the time of a
commit under it as well (MySQL sql/binlog.cc, write_transaction and get_current_log). So what is dated before the
question lies before the reported end, however long a group takes to be written, and whatever sync_binlog says.

Other servers date a transaction by the start of the statement that committed it (MariaDB sql/log_event.cc,
Log_event::Log_event; thd->start_time). There the time is that of the oldest statement which is still running. A replica
of them, and a node of a Galera cluster, write the times of other servers: nothing is known there.
"""

from __future__ import annotations

from zsnapdb.base.model import BinlogCoordinates
from zsnapdb.mysql.probe import channels
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock, global_variables
from zsnapdb.planning.binlog.completeness import CommitHorizon
from zsnapdb.planning.facts import Dialect

_SECOND = 1_000_000
_IDLE = "'Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID'"


def commit_horizon(session: Session, forms: Dialect) -> CommitHorizon | None:
    """Return the horizon of the server's commits now; None if the server cannot know it. `forms` are the server's.

    The time is a whole second: binlogs that date by the second cut the fraction off. ServerError if the account may not
    ask, or if the server does not answer in time.
    """
    asked = int(clock(session))
    if not _dates_commits(session):
        if channels(session, forms) or global_variables(session, ("wsrep_on",)).get("wsrep_on") == "ON":
            return None
        if not _sees_all_statements(session):
            return None
        # The start of a statement is what its session says it is (SET timestamp), be it before 1970.
        asked -= _longest_statement(session)
        if asked <= 0:
            return None
    rows = session.records(forms.position)
    if not rows:
        return None
    end = BinlogCoordinates(str(rows[0]["File"]), int(rows[0]["Position"]))
    # Everything dated up to the second before was begun before the question.
    return CommitHorizon((asked - 1) * _SECOND, end)


def _dates_commits(session: Session) -> bool:
    """Whether the server writes the time of each commit to its binlog, and not that of a statement."""
    return bool(session.query("SHOW SESSION VARIABLES LIKE 'original_commit_timestamp'"))


def _sees_all_statements(session: Session) -> bool:
    """Whether the account has PROCESS; without it the process list shows its own connections alone, and no error."""
    user, _, host = str(session.value("SELECT CURRENT_USER()")).rpartition("@")
    grantee = f"'{user}'@'{host}'"
    granted = "SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS' AND grantee = %s"
    return bool(session.query(granted, (grantee,)))


def _longest_statement(session: Session) -> int:
    """Return for how many seconds the longest running statement of another connection runs, rounded up."""
    running = f"id <> CONNECTION_ID() AND command NOT IN ({_IDLE})"
    longest = session.value(f"SELECT MAX(time) FROM information_schema.processlist WHERE {running}")
    return 0 if longest is None else max(0, int(longest)) + 1
