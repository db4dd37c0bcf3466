"""What was read of the protection of instances a moment ago: with ten thousand backups a reading takes over a second.

An answer that is a little old is given at once, while it is read anew. What somebody looked at lately is kept warm.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.serve.messages import RefusedRequest, ResultAnswer
from zsnapdb.serve.stopping import StopServing

Read = Callable[[], ResultAnswer]


@dataclass
class _Recent:
    """An answer (None: none yet), when its reading began and when somebody asked last, by a clock that only goes on."""

    read: Read
    asked: float
    answer: ResultAnswer | None = None
    began: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class RecentAnswers:
    """Answers by what was asked. Times are in seconds.

    One that is older than `oldest` is given to nobody: whoever asks waits for a reading, which all who wait for it
    share. One older than `fresh` is read anew, and so is each after `every` that somebody asked for in the last `warm`.
    An error is kept for nobody.
    """

    fresh: float = 10.0
    oldest: float = 60.0
    every: float = 30.0
    warm: float = 900.0
    now: Callable[[], float] = time.monotonic
    _known: dict[str, _Recent] = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def answer(self, asked: str, read: Read) -> ResultAnswer:
        """Return the answer to what is asked. The errors are those of `read`."""
        with self._lock:
            known = self._known.setdefault(asked, _Recent(read, self.now()))
            known.read, known.asked = read, self.now()
        age = self._age(known)
        if known.answer is not None and age <= self.oldest:
            if age > self.fresh:
                threading.Thread(target=self._refresh, args=(known, self.fresh), daemon=True).start()
            return known.answer
        with known.lock:
            # Whoever waited for the lock may find what another has just read.
            if known.answer is None or self._age(known) > self.oldest:
                self._read(known)
            assert known.answer is not None
            return known.answer

    def keep_warm(self, stop: StopServing) -> None:
        """Read anew what somebody asked for lately, until the stop is requested. What nobody asks for is forgotten."""
        while not stop.is_set():
            time.sleep(min(1.0, self.every))
            self.refresh_due()

    def refresh_due(self) -> None:
        """Read anew what is due, and forget what nobody asked for lately."""
        with self._lock:
            for asked in [one for one, known in self._known.items() if self.now() - known.asked > self.warm]:
                del self._known[asked]
            due = [one for one in self._known.values() if self._age(one) > self.every]
        for known in due:
            self._refresh(known, self.every)

    def _age(self, known: _Recent) -> float:
        return self.now() - known.began

    def _refresh(self, known: _Recent, than: float) -> None:
        """Read it anew if it is older than so many seconds, unless somebody does so just now."""
        if known.lock.acquire(blocking=False):
            try:
                # What goes wrong is told to whoever asks when the answer is too old.
                with contextlib.suppress(RefusedRequest, ZsnapdbError, OSError):
                    if self._age(known) > than:
                        self._read(known)
            finally:
                known.lock.release()

    def _read(self, known: _Recent) -> None:
        began = self.now()
        known.answer, known.began = known.read(), began
