"""Where the binlog of a clone ends, by which it is known that nothing was written into the clone since.

It is asked only where the users of the clone cannot keep a change out of the binlog (`row_reset.hides_changes`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.patterns import BINLOG
from zsnapdb.jobs.clone import handed
from zsnapdb.jobs.clone.handed import HandedState
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.mysql.account_rights import routine_of_another
from zsnapdb.mysql.binlog.opening import key_of, open_binlog
from zsnapdb.mysql.binlog.read import index_entries
from zsnapdb.mysql.capability import binlog_status
from zsnapdb.mysql.connections import has_prepared_transactions
from zsnapdb.mysql.schema.counters import definitions
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.row_reset import log_objection
from zsnapdb.planning.server_copy.identity import binlog_paths

_FORM = re.compile(rf"({BINLOG}):([0-9]{{1,18}}):([0-9a-f]{{64}})")


@dataclass(frozen=True)
class LogEnd:
    """The newest file of a binlog, the offset at which it ends, and the digest of how all tables are defined then.

    Not every change of a definition is in a binlog (`schema.counters.definitions`).
    """

    file: str
    offset: int
    defined: str

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}:{self.defined}"

    @classmethod
    def parse(cls, text: str) -> LogEnd | None:
        """Return the end that a property records; None if it is of another form."""
        match = _FORM.fullmatch(text)
        return cls(match.group(1), int(match.group(2)), match.group(3)) if match is not None else None


def of_running(session: Session) -> LogEnd | None:
    """Return where the binlog of the running server ends. None if that is not known, or if it may lack changes."""
    status = binlog_status(session)
    if log_objection(status) is not None or routine_of_another(session) or has_prepared_transactions(session):
        return None
    return LogEnd.parse(f"{os.path.basename(status['File'])}:{status.get('Position', '')}:{definitions(session)}")


def of_state(state: HandedState) -> LogEnd | None:
    """Return where the binlog ended when the clone was handed to its user, or when rows of it were undone."""
    return LogEnd.parse(f"{os.path.basename(state.file)}:{state.offset}:{state.definitions}")


def is_end_of_stopped(copy: Copy, end: LogEnd) -> bool:
    """Whether a server that was shut down logged no transaction after that end.

    OSError or ZsnapdbError if its binlog cannot be read.
    """
    # Only this reads what is in a binlog: other commands need none of its decoders.
    from zsnapdb.mysql.binlog.transaction_changes import transaction_changes

    folder, index = handed.binlog_folder(copy), binlog_paths(copy.variables, "log_bin")
    names = [Path(entry).name for entry in index_entries(Path(copy.paths.translate(index[1])))] if index else []
    if folder is None or names[-1:] != [end.file]:
        return False
    with open_binlog(folder / end.file, copy.keys) as file:
        if key_of(file) is not None or file.seek(0, os.SEEK_END) < end.offset:
            return False
        return next(transaction_changes(file, end.file, end.offset), None) is None
