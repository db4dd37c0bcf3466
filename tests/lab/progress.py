"""Output of a running job so far, and the number of its finished tests."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EVERY = 60.0
"""Seconds between two lines about running jobs. A whole run takes about 40 minutes."""
_ENDED = re.compile(r"^([.sxXFE]+)(?: +\[ *\d+%\])?$", re.MULTILINE)
"""A line of `pytest -q` with a letter per finished test: `.` passed, F failed, E error."""


@dataclass
class JobOutput:
    """The growing output of a job. One thread adds to it, another may read."""

    name: str
    began: float = field(default_factory=time.monotonic)
    _data: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self._data += data

    @property
    def text(self) -> str:
        return bytes(self._data).decode(errors="replace")

    def so_far(self) -> str:
        """Return the name, and how many tests have ended and failed: `system 1, mysql: 12 (1 failed)`."""
        letters = "".join(_ENDED.findall(self.text))
        failed = letters.count("F") + letters.count("E")
        return f"{self.name}: {len(letters)}" + (f" ({failed} failed)" if failed else "")


def told_until_ended(
    threads: Sequence[threading.Thread],
    running: Callable[[], Sequence[JobOutput]],
    every: float = EVERY,
    tell: Callable[[str], None] = lambda line: print(line, flush=True),
) -> None:
    """Wait for the threads. Report the finished tests of the running jobs every `every` seconds."""
    began = printed = time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(max(0.01, printed + every - time.monotonic()))
            if thread.is_alive() and time.monotonic() >= printed + every:
                printed = time.monotonic()
                tell(f"... {printed - began:.0f} s, tests ended: " + "; ".join(job.so_far() for job in running()))
