"""Signs of life for programs: a line of JSON every few seconds, even in a step that reports no progress.

A program that runs commands on other hosts reads the lines as heartbeats. Missing lines mean that the process hangs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping

from zsnapdb.cli import log
from zsnapdb.report.log_lines import LogLevel

EVERY_SECONDS = 5.0
"""Longest silence of a command."""


class Pulse:
    """The present step of the command and the time of its last line.

    A process has one pulse, as it runs one command.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step, self._begun, self._told = "", 0.0, 0.0

    def note(self, step: str, *, is_told: bool = True) -> None:
        """Record the present step of the command. `is_told`: a line has just reported it."""
        with self._lock:
            now = time.monotonic()
            if step != self._step:
                self._step, self._begun = step, now
            if is_told:
                self._told = now

    @contextlib.contextmanager
    def beating(self, words: str, every: float = EVERY_SECONDS) -> Iterator[None]:
        """Write a line during the block after `every` seconds of silence. `words` are the words of the command."""
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
                log.write(LogLevel.INFO, str(fields["step"]), event="progress", **fields)

    def _due(self, every: float) -> Mapping[str, str | float] | None:
        with self._lock:
            now = time.monotonic()
            if now - self._told < every:
                return None
            self._told = now
            return {"step": self._step, "seconds": round(now - self._begun, 1)}


PULSE = Pulse()
