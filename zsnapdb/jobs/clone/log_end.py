"""Where the binlog of a clone ends, by which it is known that nothing was written into the clone since.

It is asked only where the users of the clone cannot keep a change out of the binlog (`row_reset.hides_changes`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.patterns import BINLOG
from zsnapdb.jobs.clone import handed
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.mysql.binlog.opening import key_of, open_binlog
from zsnapdb.mysql.binlog.read import index_entries
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.mysql.capability import binlog_status
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.row_reset import log_objection
from zsnapdb.planning.server_copy.identity import binlog_paths

_FORM = re.compile(rf"({BINLOG}):([0-9]{{1,18}})")


@dataclass(frozen=True)
class LogEnd:
    """The newest file of a binlog, and the offset at which it ends."""

    file: str
    offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> LogEnd | None:
        """Return the end that a property records; None if it is of another form."""
        match = _FORM.fullmatch(text)
        return cls(match.group(1), int(match.group(2))) if match is not None else None


def of_running(session: Session) -> LogEnd | None:
    """Return where the binlog of the running server ends; None if it is not known, or leaves out schemas."""
    status = binlog_status(session)
    text = f"{Path(status.get('File', '')).name}:{status.get('Position', '')}"
    return LogEnd.parse(text) if log_objection(status) is None else None


def of_stopped(copy: Copy) -> LogEnd:
    """Return where the binlog of a server ends that does not run. OSError or PreflightError if it is not known."""
    folder, newest = _newest(copy)
    with open_binlog(folder / newest, copy.keys) as file:
        return LogEnd(newest, file.seek(0, 2))


def is_end_of_stopped(copy: Copy, end: LogEnd) -> bool:
    """Whether a server that does not run wrote nothing after that end but that it stopped. The errors: `of_stopped`."""
    folder, newest = _newest(copy)
    if newest != end.file:
        return False
    with open_binlog(folder / newest, copy.keys) as file:
        if key_of(file) is not None or file.seek(0, 2) < end.offset:
            return False
        file.seek(0)
        return next(transaction_changes(file, newest, end.offset), None) is None


def _newest(copy: Copy) -> tuple[Path, str]:
    folder, index = handed.binlog_folder(copy), binlog_paths(copy.variables, "log_bin")
    names = [Path(entry).name for entry in index_entries(Path(copy.paths.translate(index[1])))] if index else []
    if folder is None or not names:
        raise PreflightError("the server writes no binlog", hint="nothing says what was written since")
    return folder, names[-1]
