"""Events of jobs on stderr: progress is one rewritten line on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time

from zsnapdb.model import Progress
from zsnapdb.printed import printed

_TERMINAL_SECONDS = 0.1
_LOG_SECONDS = 5.0


def _write(text: str) -> None:
    """Write to stderr. A lost session or a closed pipe ends no job: the text is lost, the job continues."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


class Terminal:
    """Prints the events of a job to stderr: messages, and the progress of each step with rate and time left."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._step = ""
        self._started = 0.0
        self._shown = 0.0

    def progress(self, progress: Progress) -> None:
        """Print the progress if the last line is old enough."""
        now = time.monotonic()
        if progress.step != self._step:
            self.end()
            self._step, self._started, self._shown = progress.step, now, now
        if now - self._shown < (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
            return
        self._shown = now
        rate = progress.done / max(now - self._started, 0.001)
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
        _write(f"zsnapdb: {printed(text)}\n")

    def warn(self, text: str) -> None:
        """Print a warning that stays on the terminal."""
        self.tell(f"warning: {text}")

    def end(self) -> None:
        """Clear the progress line on a terminal."""
        if self._terminal and self._step:
            _write("\r\033[K")
        self._step = ""
