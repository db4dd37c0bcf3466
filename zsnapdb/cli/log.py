"""The log of a command: lines on stderr, or in systemd's journal. Options and variables say which, and how much."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from zsnapdb.base import audience, run_id
from zsnapdb.cli.progress_bars import SCREEN
from zsnapdb.report.log_lines import LogFormat, LogLevel, LogRecord, Value, journal_message, json_line, text_line

LEVEL, FORMAT, PROGRESS = "ZSNAPDB_LOG_LEVEL", "ZSNAPDB_LOG_FORMAT", "ZSNAPDB_JSON_PROGRESS"
"""The variables. An option sets its variable, so that the commands that this one starts log in the same way."""
JOURNAL = Path("/run/systemd/journal/socket")
_NO_FIELDS: Mapping[str, Value] = {}
_about: ContextVar[Mapping[str, Value]] = ContextVar("about", default=_NO_FIELDS)


@dataclass(frozen=True)
class LogStyle:
    """Which lines are written, and how. With `has_json_progress` everything is JSON, also how far a step has come."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.TEXT
    has_json_progress: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LogStyle:
        """Return the style that the environment asks for. What it does not know counts as left out."""
        # Lines about what happens meanwhile name whatever the command meets.
        level = LogLevel.ERROR.value if environment.get(audience.AUDIENCE_VARIABLE) else environment.get(LEVEL, "")
        named = environment.get(FORMAT, "")
        has_progress = environment.get(PROGRESS, "").lower() in ("1", "true", "yes")
        chosen = LogFormat(named) if named in set(LogFormat) else LogFormat.TEXT
        return cls(
            LogLevel(level) if level in set(LogLevel) else LogLevel.INFO,
            LogFormat.JSON if has_progress else chosen,
            has_progress,
        )

    def shows(self, level: LogLevel) -> bool:
        """Whether lines of this level are written."""
        return level.priority <= self.level.priority


def style() -> LogStyle:
    """Return the style of this process."""
    return LogStyle.of(os.environ)


def about(**fields: Value) -> None:
    """Say in all later lines of this command what they are about, such as instance="main"."""
    _about.set({**_about.get(), **fields})


def write(level: LogLevel, text: str, **fields: Value) -> None:
    """Write a line, if its level is shown. A lost session or a closed pipe ends no command: the line is lost."""
    chosen = style()
    if not chosen.shows(level):
        return
    record = LogRecord(datetime.now(UTC), level, text, run_id.current(), {**_about.get(), **fields})
    if chosen.format is LogFormat.JOURNAL and _sent(journal_message(record), JOURNAL):
        return
    line = json_line(record) if chosen.format is LogFormat.JSON else text_line(record)
    with SCREEN.cleared(), contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def ended(words: str, exit_code: int, seconds: float) -> None:
    """Write the last line of a command: for programs always, for people only with -v."""
    level = LogLevel.DEBUG if style().format is LogFormat.TEXT else LogLevel.INFO
    text = f"{words} ended with {exit_code} after {seconds:.1f} s"
    write(level, f"{text}, run {run_id.current()}", event="ended", exit_code=exit_code, seconds=round(seconds, 3))


def _sent(message: bytes, path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(message, str(path))
    except OSError:
        # No journal here, or the message is too long for a datagram.
        return False
    return True


# The names of these variables are those of zsnapdb/cli/log.py, which reads them.
_LEVEL, _FORMAT, _PROGRESS = "ZSNAPDB_LOG_LEVEL", "ZSNAPDB_LOG_FORMAT", "ZSNAPDB_JSON_PROGRESS"


def _sets(variable: str, fixed: str = "") -> Callable[[Any], Any]:
    """Return what an option does: set the variable of the log. The commands that this one starts find it too."""

    def set_it(value: Any) -> Any:
        if value:
            os.environ[variable] = fixed or str(getattr(value, "value", value))
        return value

    return set_it


def wants_json_progress(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command line, or a variable, asks for the progress as JSON."""
    return "--json-progress" in words or environment.get(_PROGRESS, "").lower() in ("1", "true", "yes")


def _option(*names: str, sets: str, fixed: str = "", hidden: bool, text: str) -> Any:
    return typer.Option(
        *names,
        callback=_sets(sets, fixed),
        expose_value=False,
        hidden=hidden,
        show_default=False,
        allow_from_autoenv=False,
        help=text,
    )


VALUED_LOG_OPTIONS = ("--log-level", "--log-format")
"""The options of the log that are followed by a value."""


def log_options(*, hidden: bool) -> list[Any]:
    """Return new options of the log for a command. Commands hide them: the help of `zsnapdb` explains them once."""
    level = _option("--log-level", sets=_LEVEL, hidden=hidden, text="The least important lines on stderr.")
    line_format = _option(
        "--log-format",
        sets=_FORMAT,
        hidden=hidden,
        text="Lines on stderr as text for people, as json for programs, or in the journal of systemd with its fields.",
    )
    quiet = _option(
        "--quiet",
        "-q",
        sets=_LEVEL,
        fixed=LogLevel.WARNING.value,
        hidden=hidden,
        text="Write only warnings and errors to stderr, no progress.",
    )
    verbose = _option(
        "--verbose",
        "-v",
        sets=_LEVEL,
        fixed=LogLevel.DEBUG.value,
        hidden=hidden,
        text="Also write how the command ended, and the id of its run.",
    )
    progress = _option(
        "--json-progress",
        sets=_PROGRESS,
        fixed="1",
        hidden=hidden,
        text="Write the log and the progress of each step to stderr as JSON, a line each.",
    )

    def command(
        log_level: Annotated[LogLevel | None, level] = None,
        log_format: Annotated[LogFormat | None, line_format] = None,
        quiet: Annotated[bool, quiet] = False,
        verbose: Annotated[bool, verbose] = False,
        json_progress: Annotated[bool, progress] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    known = ("log_level", "log_format", "quiet", "verbose", "json_progress")
    return [parameter for parameter in get_command(app).params if parameter.name in known]
