"""A time, and a place in the binlogs before which everything lies that a server commits up to it.

The time is asked first, and the end of the binlog after it. A server writes a group of transactions to its binlog under
a lock (LOCK_log), and reports the end of its binlog under the same lock. MySQL 8.0.1 and newer take the time of a
commit under it as well (MySQL sql/binlog.cc, write_transaction and get_current_log). So what was committed before the
question lies before the reported end, however long a group takes to be written, and whatever sync_binlog says.

The events of other servers have the times of statements, of sessions or of a source. What comes behind the end with an
earlier time was committed later all the same, and the archiver says so (`planning/binlog/commit_times.py`).
"""

from __future__ import annotations

from zsnapdb.base.model import BinlogCoordinates
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock
from zsnapdb.planning.binlog.completeness import CommitHorizon
from zsnapdb.planning.facts import Dialect

_SECOND = 1_000_000


def commit_horizon(session: Session, forms: Dialect) -> CommitHorizon | None:
    """Return the horizon of the server's commits now; None if it has no binlog. `forms` are the server's.

    The time is a whole second: binlogs that date by the second cut the fraction off. ServerError if the account may not
    ask, or if the server does not answer in time.
    """
    asked = int(clock(session))
    rows = session.records(forms.position)
    if not rows:
        return None
    end = BinlogCoordinates(str(rows[0]["File"]), int(rows[0]["Position"]))
    # Everything dated up to the second before was begun before the question.
    return CommitHorizon((asked - 1) * _SECOND, end)
