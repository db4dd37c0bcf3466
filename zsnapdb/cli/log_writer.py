"""The log of a command, on stderr or in systemd's journal. Options and environment variables set its format."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.base import run_context
from zsnapdb.cli.printed_commands import complete
from zsnapdb.cli.progress_bars import SCREEN
from zsnapdb.report.log_lines import LogFormat, LogLevel, LogRecord, Value, journal_message, json_line, text_line

LEVEL, FORMAT, PROGRESS = "ZSNAPDB_LOG_LEVEL", "ZSNAPDB_LOG_FORMAT", "ZSNAPDB_JSON_PROGRESS"
"""Names of the variables. Each option sets its variable, so that child processes log in the same way."""
JOURNAL = Path("/run/systemd/journal/socket")
_NO_FIELDS: Mapping[str, Value] = {}
_about: ContextVar[Mapping[str, Value]] = ContextVar("about", default=_NO_FIELDS)


@dataclass(frozen=True)
class LogStyle:
    """Level and format of the log. With `has_json_progress`, all lines including progress are JSON."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.TEXT
    has_json_progress: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LogStyle:
        """Return the style that the environment requests. Unknown values are ignored."""
        # Progress lines may name objects that a restricted audience must not see.
        level = LogLevel.ERROR.value if environment.get(run_context.AUDIENCE_VARIABLE) else environment.get(LEVEL, "")
        named = environment.get(FORMAT, "")
        has_progress = environment.get(PROGRESS, "").lower() in ("1", "true", "yes")
        chosen = LogFormat(named) if named in set(LogFormat) else LogFormat.TEXT
        return cls(
            LogLevel(level) if level in set(LogLevel) else LogLevel.INFO,
            LogFormat.JSON if has_progress else chosen,
            has_progress,
        )

    def shows(self, level: LogLevel) -> bool:
        """Return whether lines of this level are written."""
        return level.priority <= self.level.priority


def style() -> LogStyle:
    """Return the style of this process."""
    return LogStyle.of(os.environ)


def add_log_fields(**fields: Value) -> None:
    """Add fields to all later lines of this command, such as instance="main"."""
    _about.set({**_about.get(), **fields})


def write(level: LogLevel, text: str, **fields: Value) -> None:
    """Write a line if the log shows its level.

    If the session or pipe is closed, the line is lost, and the command continues.
    """
    chosen = style()
    if not chosen.shows(level):
        return
    record = LogRecord(datetime.now(UTC), level, complete(text), run_context.run_id(), {**_about.get(), **fields})
    if chosen.format is LogFormat.JOURNAL and _send(journal_message(record), JOURNAL):
        return
    line = json_line(record) if chosen.format is LogFormat.JSON else text_line(record)
    with SCREEN.cleared(), contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def info(text: str) -> None:
    """Write a line about the progress of the command."""
    write(LogLevel.INFO, text)


def warn(text: str) -> None:
    """Write a warning."""
    write(LogLevel.WARNING, text)


def error(text: str) -> None:
    """Write an error."""
    write(LogLevel.ERROR, text)


def log_end(words: str, exit_code: int, seconds: float) -> None:
    """Write the last line of a command. The text format contains this line only with -v."""
    level = LogLevel.DEBUG if style().format is LogFormat.TEXT else LogLevel.INFO
    text = f"{words} ended with {exit_code} after {seconds:.1f} s"
    write(level, f"{text}, run {run_context.run_id()}", event="ended", exit_code=exit_code, seconds=round(seconds, 3))


def _send(message: bytes, path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(message, str(path))
    except OSError:
        # The host has no journal, or the message is too long for a datagram.
        return False
    return True
