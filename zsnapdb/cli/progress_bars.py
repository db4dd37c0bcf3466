"""Progress bars on a terminal: one per step of a command, with bytes, rate and remaining time.

rich draws the bars. rich is imported when the first bar is drawn, because short commands have no bars.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zsnapdb.base.untrusted_text import printed

if TYPE_CHECKING:
    from rich.console import Console

    from zsnapdb.base.domain_types import Progress

_SECONDS = 0.1
"""Minimum number of seconds between two drawings of the bars. A step that is shorter gets no bar."""
_MOST = 6
"""Maximum number of bars. The newest steps have bars."""
_WIDTH = 30


class Screen:
    """The terminal behind stderr; a process has only one. It counts the lines with bars above the cursor."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lines = 0

    def draw(self, text: str) -> None:
        """Draw the text over the previously drawn lines."""
        with self.cleared():
            _write(text)
            self._lines = text.count("\n")

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Remove the bars, then run the block, which writes permanent lines.

        During the block, no other thread draws.
        """
        with self._lock:
            if self._lines:
                # Control sequences of ECMA-48: CPL moves the cursor up to the start of a line. ED erases everything
                # from the cursor on.
                _write(f"\x1b[{self._lines}F\x1b[J")
                self._lines = 0
            yield


SCREEN = Screen()


def _write(text: str) -> None:
    """Write to stderr. If the session or pipe is closed, the text is lost and the job continues."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


@dataclass
class _Step:
    """A step, its start, and the time of its last progress, by the monotonic clock."""

    progress: Progress
    began: float
    seen: float


@dataclass
class Bars:
    """The bars of a command. Several threads may call `show`."""

    screen: Screen = field(default_factory=lambda: SCREEN)
    _steps: dict[str, _Step] = field(init=False, default_factory=dict)
    _drawn: float = field(init=False, default=0.0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def show(self, progress: Progress) -> None:
        """Record the progress of a step. Draw all bars if enough time has passed since the last drawing."""
        now = time.monotonic()
        with self._lock:
            known = self._steps.get(progress.step)
            if known is None or progress.done < known.progress.done:
                # The step is new or is repeated.
                self._steps.pop(progress.step, None)
                self._steps[progress.step] = _Step(progress, now, now)
                self._drawn = now
            else:
                known.progress, known.seen = progress, now
            if now - self._drawn < _SECONDS:
                return
            self._drawn = now
            text = _text(list(self._steps.values())[-_MOST:])
        self.screen.draw(text)

    def end(self) -> None:
        """Remove the bars from the screen and forget their steps."""
        with self._lock:
            self._steps.clear()
        with self.screen.cleared():
            pass


def amount(progress: Progress, rate: float) -> str:
    """Return the progress of a step as text, with remaining time and rate. The rate is in bytes per second."""
    text = f"{progress.done / 2**20:.0f} MiB"
    if progress.total is None:
        text += " of an unknown size"
    elif progress.total > progress.done:
        left = (progress.total - progress.done) / max(rate, 1.0)
        text += f" of {progress.total / 2**20:.0f} MiB, {left:.0f} s left"
    return f"{text}, {rate / 2**20:.0f} MiB/s"


def _text(steps: list[_Step]) -> str:
    """Return a line for each step; "" on a terminal that cannot move its cursor."""
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text

    console = _console()
    if console.is_dumb_terminal:
        return ""
    table = Table.grid(Column(no_wrap=True), Column(), Column(no_wrap=True), padding=(0, 1))
    # A terminal with few lines scrolls, and lines above its top cannot be redrawn.
    for step in steps[-max(1, console.height - 2) :]:
        done, total = step.progress.done, step.progress.total
        rate = done / max(step.seen - step.began, 0.001)
        bar = ProgressBar(total=total, completed=min(done, total) if total is not None else done, width=_WIDTH)
        table.add_row(Text(printed(step.progress.step)), bar, Text(amount(step.progress, rate)))
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def _console() -> Console:
    """Return rich's console for stderr, with its size and colours. NO_COLOR disables colours."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)
