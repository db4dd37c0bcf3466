"""The recorded state of a clone at its handover or last reset: the end of its binlog and its AUTO_INCREMENT counters.

The record is a file below /run, because it describes a running server. A reboot removes the file and ends the server.
If the record is lost, a reset replaces the data.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import PreflightError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import BINLOG
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.isolated_start import CloneServer
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.mysql.accounts import has_prepared_transactions, routine_of_another
from zsnapdb.mysql.binlog.binlog_files import key_of, open_binlog
from zsnapdb.mysql.binlog.tail import digest_of, index_entries
from zsnapdb.mysql.probe import binlog_status
from zsnapdb.mysql.process.process_managers import started_at
from zsnapdb.mysql.schema.counters import counters, definitions
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock
from zsnapdb.planning.clone.row_reset import MOST_TABLES, log_objection
from zsnapdb.planning.server_copy.copy_options import binlog_paths

_MOST_BYTES = 1 << 20


class Counter(BaseModel):
    """The next value of a table's AUTO_INCREMENT column."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    schema_name: str
    table: str
    value: Annotated[int, Field(ge=0)]


class RecordedReset(BaseModel):
    """The reset that produced the clone's data: the id of the run, and the values of the result (`ResetClone`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    run_id: str
    transactions: int | None = None
    rows: int | None = None
    seconds: float | None = None
    reason: str = ""


class ResetBaseline(BaseModel):
    """The state of a clone: the snapshot set of its data, its server process, and the end of the server's binlog.

    `started` is in clock ticks since boot. `rules` is the digest of the masking rules, or "" without masking. `inode`
    is the inode number of the binlog. `digest` is the digest of the binlog's bytes up to the recorded end
    (`mysql.binlog.read.digest_of`). `definitions` is the digest of all table definitions. `locks_accounts` is set if
    the accounts of the source may not log in. `reset` is the reset that led to this state; None if there was no reset,
    or if it is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    backup_id: str
    revision: int
    rules: str
    pid: int
    started: int
    file: str
    offset: Annotated[int, Field(ge=4)]
    digest: str
    inode: int
    definitions: str
    locks_accounts: bool
    counters: tuple[Counter, ...] | None
    """The tables' counters; None if there are too many tables to record."""
    at: Annotated[int, Field(ge=0)] = 0
    """The server's time when the state was recorded, in seconds since 1970; 0 if an older version wrote the record."""
    reset: RecordedReset | None = None

    @property
    def by_table(self) -> dict[tuple[str, str], int] | None:
        """The AUTO_INCREMENT counters by schema and table; None if they are unknown."""
        if self.counters is None:
            return None
        return {(counter.schema_name, counter.table): counter.value for counter in self.counters}


def _file(host: Host, name: str) -> Path:
    return host.run / "handed" / f"{name}.json"


def note(host: Host, clone: CloneServer, rules: str, session: Session) -> None:
    """Record the present state of the running clone, before its users can log in.

    If the state cannot be recorded, the next reset is slower. Nothing else changes. `rules` is the digest of the rules
    by which the clone must be masked.
    """
    record, copy = clone.record, clone.copy
    forget(host, record.name)
    # The server may answer with text that is not a number.
    with contextlib.suppress(ZsnapdbError, OSError, ValueError):
        status, known = binlog_status(session), counters(session, MOST_TABLES)
        process = copy.process().pid()
        started = started_at(process) if process is not None else None
        folder = binlog_folder(copy)
        if process is None or started is None or folder is None or not status.get("File"):
            return
        offset = int(status["Position"])
        with open_binlog(folder / os.path.basename(status["File"]), copy.keys) as file:
            digest, inode = digest_of(file, offset), os.fstat(file.fileno()).st_ino
        state = ResetBaseline(
            backup_id=record.backup_id,
            revision=record.revision,
            rules=rules,
            pid=process,
            started=started,
            file=status["File"],
            offset=offset,
            digest=digest,
            inode=inode,
            definitions=definitions(session) if known is not None else "",
            at=int(clock(session)),
            locks_accounts=clone.locks_accounts,
            counters=None
            if known is None
            else tuple(Counter(schema_name=s, table=t, value=value) for (s, t), value in sorted(known.items())),
        )
        store(host, record.name, state)


def binlog_folder(copy: Copy) -> Path | None:
    """Return the folder of the copy's binlogs, according to the source's variables; None if there are no binlogs."""
    paths = binlog_paths(copy.variables, "log_bin")
    return None if paths is None else Path(copy.paths.translate(paths[0])).parent


def store(host: Host, name: str, state: ResetBaseline) -> None:
    """Store the state of the clone. If the file cannot be written, no state is recorded."""
    with contextlib.suppress(OSError, PreflightError):
        file = _file(host, name)
        make_private(file.parent)
        files.replace_disposable(file, state.model_dump_json().encode())
        return
    forget(host, name)


def note_reset(host: Host, info: CloneInfo, reset: RecordedReset) -> None:
    """Record which reset produced the clone's data, so that a repeated run with the same id does not repeat the reset.

    If the clone's state is not recorded, nothing is written. The caller must hold the clone's lock, so the state cannot
    change meanwhile.
    """
    state = read(host, info)
    if state is not None:
        store(host, info.name, state.model_copy(update={"reset": reset}))


def read(host: Host, info: CloneInfo) -> ResetBaseline | None:
    """Return the recorded state; None if there is no record, or if the server or the data has been replaced."""
    try:
        opened = os.open(_file(host, info.name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            state = ResetBaseline.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None
    now = (info.backup_id, info.revision, info.pid, started_at(info.pid) if info.pid is not None else None)
    return state if (state.backup_id, state.revision, state.pid, state.started) == now else None


def forget(host: Host, name: str) -> None:
    """Remove the record of the clone's state."""
    with contextlib.suppress(OSError):
        _file(host, name).unlink(missing_ok=True)


_FORM = re.compile(rf"({BINLOG}):([0-9]{{1,18}}):([0-9a-f]{{64}})")


@dataclass(frozen=True)
class LogEnd:
    """The end of a clone's binlog: the newest file, the offset of its end, and a digest of all table definitions.

    The digest is needed because some changes of definitions are in no binlog (`schema.counters.definitions`).
    """

    file: str
    offset: int
    defined: str

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}:{self.defined}"

    @classmethod
    def parse(cls, text: str) -> LogEnd | None:
        """Return the binlog end in the text of a property; None if the text cannot be parsed."""
        match = _FORM.fullmatch(text)
        return cls(match.group(1), int(match.group(2)), match.group(3)) if match is not None else None


def running_binlog_end(session: Session) -> LogEnd | None:
    """Return the end of the running server's binlog; None if the end is unknown, or if the binlog may lack changes."""
    status = binlog_status(session)
    if log_objection(status) is not None or routine_of_another(session) or has_prepared_transactions(session):
        return None
    return LogEnd.parse(f"{os.path.basename(status['File'])}:{status.get('Position', '')}:{definitions(session)}")


def recorded_binlog_end(state: ResetBaseline) -> LogEnd | None:
    """Return where the clone's binlog ended at the handover of the clone, or at the last undo of its rows."""
    return LogEnd.parse(f"{os.path.basename(state.file)}:{state.offset}:{state.definitions}")


def is_end_of_stopped(copy: Copy, end: LogEnd) -> bool:
    """Return whether a stopped server logged no transaction after `end`.

    Raises:
        OSError: a binlog cannot be read.
        ZsnapdbError: a binlog cannot be read.
    """
    # Import late, because only this function decodes binlog events.
    from zsnapdb.mysql.binlog.transaction_changes import transaction_changes

    folder, index = binlog_folder(copy), binlog_paths(copy.variables, "log_bin")
    names = [Path(entry).name for entry in index_entries(Path(copy.paths.translate(index[1])))] if index else []
    if folder is None or names[-1:] != [end.file]:
        return False
    with open_binlog(folder / end.file, copy.keys) as file:
        if key_of(file) is not None or file.seek(0, os.SEEK_END) < end.offset:
            return False
        return next(transaction_changes(file, end.file, end.offset), None) is None
