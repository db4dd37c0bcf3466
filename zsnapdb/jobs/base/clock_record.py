"""The record of this host's clocks, and the time that decides about expiry (`planning/clock_guard.py`)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.files import make_private
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning import clock_guard
from zsnapdb.planning.clock_guard import ClockRecord
from zsnapdb.planning.clock_guard import RemovalTime as RemovalTime

_LOCK_SECONDS = 5.0
"""Maximum wait for the lock in seconds.

A short wait suffices, because holders of this lock only read and write the record.
"""


def removal_time(host: Host) -> RemovalTime:
    """Return the time that decides about expiry, and record the current readings of the clocks.

    If the record cannot be written, the next command uses the previous record. On a host without a steady clock, the
    wall clock is trusted, because no other clock can check it.
    """
    if (reading := host.reading()) is None:
        at = host.now()
        return RemovalTime(at, at, is_new=True)
    with contextlib.ExitStack() as stack:
        is_locked = False
        with contextlib.suppress(OSError, PreflightError):
            # The lock keeps a command with an older record from overwriting a confirmation.
            stack.enter_context(_locked(host))
            is_locked = True
        # Read the clocks again, because this run may have waited for the lock.
        reading = host.reading() or reading
        before = _read(_file(host))
        record = clock_guard.follow(before, reading)
        if is_locked and (before is None or clock_guard.is_due(before, record, reading)):
            with contextlib.suppress(OSError, PreflightError):
                make_private(host.clocks)
                files.replace(_file(host), record.model_dump_json().encode())
        return clock_guard.removal_time(record)


def confirm(host: Host) -> None:
    """Record that a person confirmed the clock of this host. Raises PreflightError if the record cannot be written."""
    reading = host.reading()
    if reading is None:
        return
    try:
        make_private(host.clocks)
        with _locked(host):
            record = clock_guard.confirmed(_read(_file(host)), reading)
            files.replace(_file(host), record.model_dump_json().encode())
    except OSError as error:
        raise PreflightError(
            f"recording the clock of this host in {_file(host)}: {error.strerror}",
            hint="free space there, or end the process that holds the lock",
        ) from error


def _locked(host: Host) -> AbstractContextManager[None]:
    make_private(host.run)
    return files.locked_file(files.lock_file(host.run, "clock"), _LOCK_SECONDS)


def _file(host: Host) -> Path:
    return host.clocks / "clock.json"


def _read(file: Path) -> ClockRecord | None:
    try:
        return ClockRecord.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
