"""How large the chunks of a stream are, and how many of them are on their way at once: more where a line is slow.

A provider gives each connection a share of the line, so many small chunks at once are faster than a few large ones. A
long stream has large chunks, so that its table of them stays short.
"""

from __future__ import annotations

import threading

from zsnapdb.base.connection_rate import is_slow, rate_of

_MOST_CONNECTIONS = 16
"""More at once bring nothing: the line is full, or the server refuses."""

_OF_A_SIZE = 64
"""So many chunks have one size, before those that follow are twice as large."""

FIRST_CHUNK = 8 << 20
"""The size of a stream's first chunks in bytes, unless none may be so large."""


def chunk_size(index: int, first: int, most: int) -> int:
    """Return the size in bytes of the chunk with that number (from 1) of a stream, unless the stream ends in it.

    The first ones have `first` bytes, later ones at most `most`.
    """
    doubled = min((index - 1) // _OF_A_SIZE, most.bit_length())
    return min(most, first << doubled)


class InFlight:
    """The slices that are on their way, and how many may be. Threads may share it.

    `concurrency` workers, and so many slices that wait for one (`waiting`), are always allowed. `widens`: each slow
    transfer allows one more, as long as all of them have at most `most_bytes`.
    """

    def __init__(self, concurrency: int, *, waiting: int, most_bytes: int, widens: bool) -> None:
        self.most_workers = max(concurrency, _MOST_CONNECTIONS if widens else 0)
        self.workers = concurrency
        self.working = threading.Semaphore(concurrency)
        self._waiting = waiting
        self._most_bytes = most_bytes
        self._always = concurrency + waiting
        self._slices = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Wait until a slice of so many bytes may be on its way."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size))
            self._add(size)

    def try_take(self, size: int) -> bool:
        """As `take`, without waiting. Return whether the slice may be on its way."""
        with self._changed:
            fits = self._fits(size)
            if fits:
                self._add(size)
            return fits

    def give(self, size: int) -> None:
        """Say that a slice of so many bytes is not on its way any more."""
        with self._changed:
            self._slices -= 1
            self._bytes -= size
            self._changed.notify()

    def transferred(self, size: int, seconds: float) -> None:
        """Note that one connection took so many bytes in so many seconds. A slow one lets another worker begin."""
        rate = rate_of(size, seconds)
        if rate is None or not is_slow(rate):
            return
        with self._changed:
            if self.workers == self.most_workers:
                return
            self.workers += 1
            self._changed.notify()
        self.working.release()

    def _fits(self, size: int) -> bool:
        return self._slices < self._always or (
            self._slices < self.workers + self._waiting and self._bytes + size <= self._most_bytes
        )

    def _add(self, size: int) -> None:
        self._slices += 1
        self._bytes += size
