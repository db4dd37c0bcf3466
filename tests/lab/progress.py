"""What a job of a whole run has printed so far, and how many of its tests have ended."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EVERY = 60.0
"""Seconds between two lines about the jobs that run. A whole run takes about 40 minutes."""
_ENDED = re.compile(r"^([.sxXFE]+)(?: +\[ *\d+%\])?$", re.MULTILINE)
"""A line of `pytest -q`: a letter for each test that ended. Passed ones have a point, F failed, E had an error."""


@dataclass
class JobOutput:
    """The output of a job, which grows while it runs. One thread adds to it, another may ask."""

    name: str
    began: float = field(default_factory=time.monotonic)
    _data: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        self._data += data

    @property
    def text(self) -> str:
        return bytes(self._data).decode(errors="replace")

    def so_far(self) -> str:
        """Return the name, how many tests have ended, and how many of them failed: `system 1, mysql: 12 (1 failed)`."""
        letters = "".join(_ENDED.findall(self.text))
        failed = letters.count("F") + letters.count("E")
        return f"{self.name}: {len(letters)}" + (f" ({failed} failed)" if failed else "")


def told_until_ended(
    threads: Sequence[threading.Thread],
    running: Callable[[], Sequence[JobOutput]],
    every: float = EVERY,
    tell: Callable[[str], None] = lambda line: print(line, flush=True),
) -> None:
    """Wait for the threads. Tell after each while what has ended in the jobs that run."""
    began = printed = time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(max(0.01, printed + every - time.monotonic()))
            if thread.is_alive() and time.monotonic() >= printed + every:
                printed = time.monotonic()
                tell(f"... {printed - began:.0f} s, tests ended: " + "; ".join(job.so_far() for job in running()))
