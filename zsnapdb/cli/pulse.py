"""Signs of life for programs: a line of JSON at least every few seconds, also while a step knows no measure of itself.

Whoever runs commands on other hosts takes the lines as heartbeats: no line for long means that the process hangs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping

from zsnapdb.cli import log
from zsnapdb.report.log_lines import LogLevel

EVERY_SECONDS = 5.0
"""At most so long is a command silent."""


class Pulse:
    """What the command does now, and when that was last told. A process runs one command, and so has one pulse."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step, self._begun, self._told = "", 0.0, 0.0

    def note(self, step: str, *, is_told: bool = True) -> None:
        """Note the step that the command is at. `is_told`: a line has said so just now."""
        with self._lock:
            now = time.monotonic()
            if step != self._step:
                self._step, self._begun = step, now
            if is_told:
                self._told = now

    @contextlib.contextmanager
    def beating(self, words: str, every: float = EVERY_SECONDS) -> Iterator[None]:
        """Write a line during the block whenever nothing was told for so long. `words` are those of the command."""
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
