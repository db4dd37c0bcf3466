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
    tried: float = 0.0
    """When the newest reading began, also one that failed."""
    readings: int = 0
    failure: RefusedRequest | ZsnapdbError | OSError | None = None
    """What the newest reading ended with, if it failed."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class RecentAnswers:
    """Answers by what was asked. Times are in seconds.

    One that is older than `oldest` is given to nobody: whoever asks waits for a reading, which all who wait for it
    share. One older than `fresh` is read anew, and so is each after `every` that somebody asked for in the last `warm`.
    An error is shared in the same way, and kept for nobody else.
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
            before = known.readings
        age = self._age(known)
        if known.answer is not None and age <= self.oldest:
            if age > self.fresh and self._may_try(known, self.fresh):
                threading.Thread(target=self._refresh, args=(known, self.fresh), daemon=True).start()
            return known.answer
        with known.lock:
            # Whoever waited for the lock may find what another has just read, or why that failed.
            if known.answer is None or self._age(known) > self.oldest:
                if known.failure is not None and known.readings > before:
                    raise known.failure
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
            known_now = list(self._known.values())
        for known in known_now:
            self._refresh(known, self.every)

    def _age(self, known: _Recent) -> float:
        return self.now() - known.began

    def _may_try(self, known: _Recent, seconds: float) -> bool:
        """Whether so many seconds have passed since the newest reading began: what fails is no reason to hurry."""
        return self.now() - known.tried > seconds

    def _refresh(self, known: _Recent, than: float) -> None:
        """Read it anew if it is older than so many seconds, unless somebody does so just now."""
        if known.lock.acquire(blocking=False):
            try:
                # What goes wrong is told to whoever asks when the answer is too old.
                with contextlib.suppress(RefusedRequest, ZsnapdbError, OSError):
                    if self._age(known) > than and self._may_try(known, than):
                        self._read(known)
            finally:
                known.lock.release()

    def _read(self, known: _Recent) -> None:
        began = known.tried = self.now()
        try:
            known.answer, known.began, known.failure = known.read(), began, None
        except (RefusedRequest, ZsnapdbError, OSError) as error:
            known.failure = error
            raise
        finally:
            known.readings += 1
