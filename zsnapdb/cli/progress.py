"""Prints events of jobs to stderr: messages, and progress as bars or (for programs) as JSON.

With JSON, a command prints a line at least every few seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from zsnapdb.base.domain_types import Progress
from zsnapdb.cli import log_writer
from zsnapdb.cli.progress_bars import Bars
from zsnapdb.report.log_lines import LogFormat, LogLevel

EVERY_SECONDS = 5.0
"""Maximum number of seconds in which a command prints nothing."""


class Pulse:
    """The current step of the command, and the time of its last line.

    A process has only one pulse, because it runs one command.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step, self._begun, self._told = "", 0.0, 0.0

    def note(self, step: str, *, is_told: bool = True) -> None:
        """Record the current step of the command. `is_told`: whether a line has just reported this step."""
        with self._lock:
            now = time.monotonic()
            if step != self._step:
                self._step, self._begun = step, now
            if is_told:
                self._told = now

    @contextlib.contextmanager
    def beating(self, words: str, every: float = EVERY_SECONDS) -> Iterator[None]:
        """During the block, write a line after `every` seconds without output. The first step is `words`."""
        self.note(words)
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended, every), name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(every)

    def _beat(self, ended: threading.Event, every: float) -> None:
        while not ended.wait(every / 5):
            fields = self._due(every)
            if fields is not None:
                log_writer.write(LogLevel.INFO, str(fields["step"]), event="progress", **fields)

    def _due(self, every: float) -> Mapping[str, str | float] | None:
        with self._lock:
            now = time.monotonic()
            if now - self._told < every:
                return None
            self._told = now
            return {"step": self._step, "seconds": round(now - self._begun, 1)}


PULSE = Pulse()


_JSON_SECONDS = 1.0
"""Seconds between two lines of JSON."""


class Terminal:
    """Prints the events of a job to stderr: messages, and the progress of each step with rate and remaining time."""

    def __init__(self) -> None:
        self._style = log_writer.style()
        is_for_people = self._style.format is LogFormat.TEXT and sys.stderr.isatty()
        self._bars = Bars() if is_for_people else None
        self._step = ""
        self._started = 0.0
        self._shown = 0.0

    def progress(self, progress: Progress) -> None:
        """Show the progress if enough time has passed since the last output."""
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
        log_writer.write(
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
        log_writer.write(LogLevel.INFO, text)

    def warn(self, text: str) -> None:
        """Print a permanent warning."""
        self._step = ""
        log_writer.write(LogLevel.WARNING, text)

    def end(self) -> None:
        """Remove the bars from the terminal."""
        self._step = ""
        if self._bars is not None:
            self._bars.end()
