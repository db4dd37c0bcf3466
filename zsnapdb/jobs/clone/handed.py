"""How a clone was when its user got it, or when it was reset: the end of its binlog, and the counters of its tables.

A file below /run: a reboot ends the server that wrote the binlog. The record may be lost at any time; then a reset
replaces the data.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.mysql.capability import binlog_status
from zsnapdb.mysql.process.processes import started_at
from zsnapdb.mysql.schema.counters import counters
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.row_reset import MOST_TABLES

_MOST_BYTES = 1 << 20


class Counter(BaseModel):
    """The next value of a table's AUTO_INCREMENT column."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: str
    table: str
    value: Annotated[int, Field(ge=0)]


class HandedState(BaseModel):
    """The data set, the server process that had it (`started` in clock ticks since boot), and the end of its binlog.

    `rules` is the digest of the rules by which the clone had to be masked ("": it had not).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backup_id: str
    revision: int
    rules: str
    pid: int
    started: int
    file: str
    offset: Annotated[int, Field(ge=4)]
    counters: tuple[Counter, ...]

    @property
    def by_table(self) -> dict[tuple[str, str], int]:
        """The counters by schema and table."""
        return {(counter.schema_name, counter.table): counter.value for counter in self.counters}


def _file(host: Host, name: str) -> Path:
    return host.run / "handed" / f"{name}.json"


@dataclass(frozen=True)
class HandedData:
    """The clone by its unchanging name, the data that it has, and the digest of the rules that it must be masked by."""

    name: str
    backup_id: str
    revision: int
    rules: str


def note(host: Host, data: HandedData, process: int | None, session: Session) -> None:
    """Note how the clone is now, before its users can log in. What cannot be noted costs only the fast reset.

    `process` is that of its server.
    """
    forget(host, data.name)
    with contextlib.suppress(ServerError):
        status, known = binlog_status(session), counters(session, MOST_TABLES)
        started = started_at(process) if process is not None else None
        if process is None or started is None or known is None or not status.get("Position", "").isdecimal():
            return
        state = HandedState(
            backup_id=data.backup_id,
            revision=data.revision,
            rules=data.rules,
            pid=process,
            started=started,
            file=status["File"],
            offset=int(status["Position"]),
            counters=tuple(Counter(schema_name=s, table=t, value=value) for (s, t), value in sorted(known.items())),
        )
        store(host, data.name, state)


def store(host: Host, name: str, state: HandedState) -> None:
    """Store how the clone is. If that fails, nothing is known of it."""
    with contextlib.suppress(OSError, PreflightError):
        file = _file(host, name)
        make_private(file.parent)
        whole_file.replace_disposable(file, state.model_dump_json().encode())
        return
    forget(host, name)


def read(host: Host, info: CloneInfo) -> HandedState | None:
    """Return how the clone was; None if it is not known, or if another server or other data is there now."""
    try:
        opened = os.open(_file(host, info.name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            state = HandedState.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None
    now = (info.backup_id, info.revision, info.pid, started_at(info.pid) if info.pid is not None else None)
    return state if (state.backup_id, state.revision, state.pid, state.started) == now else None


def forget(host: Host, name: str) -> None:
    """Forget how the clone was."""
    with contextlib.suppress(OSError):
        _file(host, name).unlink(missing_ok=True)
