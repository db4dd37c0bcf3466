"""Events of jobs on stderr: progress is one rewritten line on a terminal, else a line every few seconds, or JSON."""

from __future__ import annotations

import contextlib
import sys
import time

from zsnapdb.cli import log
from zsnapdb.model import Progress
from zsnapdb.printed import printed
from zsnapdb.report.log_lines import LogFormat, LogLevel

_TERMINAL_SECONDS = 0.1
_LOG_SECONDS = 5.0
_JSON_SECONDS = 1.0


def _write(text: str) -> None:
    """Write to stderr. A lost session or a closed pipe ends no job: the text is lost, the job continues."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


class Terminal:
    """Prints the events of a job to stderr: messages, and the progress of each step with rate and time left."""

    def __init__(self) -> None:
        self._style = log.style()
        self._terminal = sys.stderr.isatty() and self._style.format is LogFormat.TEXT
        self._step = ""
        self._started = 0.0
        self._shown = 0.0

    def progress(self, progress: Progress) -> None:
        """Print the progress if the last line is old enough."""
        now = time.monotonic()
        if progress.step != self._step:
            self.end()
            self._step, self._started, self._shown = progress.step, now, now
        if not self._style.shows(LogLevel.INFO) or now - self._shown < self._pause:
            return
        self._shown = now
        rate = progress.done / max(now - self._started, 0.001)
        if self._style.has_json_progress:
            self._as_json(progress, rate)
        elif self._style.format is LogFormat.TEXT:
            self._as_text(progress, rate)

    @property
    def _pause(self) -> float:
        """How many seconds pass between two lines."""
        if self._style.has_json_progress:
            return _JSON_SECONDS
        return _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS

    def _as_json(self, progress: Progress, rate: float) -> None:
        log.write(
            LogLevel.INFO,
            progress.step,
            event="progress",
            step=progress.step,
            done=progress.done,
            total=progress.total,
            bytes_per_second=round(rate),
        )

    def _as_text(self, progress: Progress, rate: float) -> None:
        text = f"{printed(progress.step)}: {progress.done / 2**20:.0f} MiB"
        if progress.total is None:
            text += " of an unknown size"
        elif progress.total > progress.done:
            left = (progress.total - progress.done) / max(rate, 1.0)
            text += f" of {progress.total / 2**20:.0f} MiB, {left:.0f} s left"
        text += f", {rate / 2**20:.0f} MiB/s"
        _write(f"\r\033[K{text}" if self._terminal else f"{text}\n")

    def tell(self, text: str) -> None:
        """Print a message that stays on the terminal."""
        self.end()
        log.write(LogLevel.INFO, text)

    def warn(self, text: str) -> None:
        """Print a warning that stays on the terminal."""
        self.end()
        log.write(LogLevel.WARNING, text)

    def end(self) -> None:
        """Clear the progress line on a terminal."""
        if self._terminal and self._step:
            _write("\r\033[K")
        self._step = ""
