"""Events of jobs on stderr: lines, and progress as bars on a terminal or as JSON for programs."""

from __future__ import annotations

import sys
import time

from zsnapdb.base.domain_types import Progress
from zsnapdb.cli import log
from zsnapdb.cli.progress_bars import Bars
from zsnapdb.cli.progress_heartbeat import PULSE
from zsnapdb.report.log_lines import LogFormat, LogLevel

_JSON_SECONDS = 1.0
"""Seconds between two lines of JSON."""


class Terminal:
    """Prints the events of a job to stderr: messages, and the progress of each step with rate and remaining time."""

    def __init__(self) -> None:
        self._style = log.style()
        is_for_people = self._style.format is LogFormat.TEXT and sys.stderr.isatty()
        self._bars = Bars() if is_for_people else None
        self._step = ""
        self._started = 0.0
        self._shown = 0.0

    def progress(self, progress: Progress) -> None:
        """Show the progress if the last output is old enough."""
        if not self._style.shows(LogLevel.INFO):
            return
        if self._style.has_json_progress:
            self._as_json(progress)
        elif self._bars is not None:
            self._bars.show(progress)

    def _as_json(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.step != self._step:
            self._step, self._started, self._shown = progress.step, now, now
            PULSE.note(progress.step, is_told=False)
        if now - self._shown < _JSON_SECONDS:
            return
        self._shown = now
        PULSE.note(progress.step)
        log.write(
            LogLevel.INFO,
            progress.step,
            event="progress",
            step=progress.step,
            done=progress.done,
            total=progress.total,
            bytes_per_second=round(progress.done / max(now - self._started, 0.001)),
        )

    def tell(self, text: str) -> None:
        """Print a permanent message."""
        self._step = ""
        PULSE.note(text)
        log.write(LogLevel.INFO, text)

    def warn(self, text: str) -> None:
        """Print a permanent warning."""
        self._step = ""
        log.write(LogLevel.WARNING, text)

    def end(self) -> None:
        """Remove the bars from the terminal."""
        self._step = ""
        if self._bars is not None:
            self._bars.end()
