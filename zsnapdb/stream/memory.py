"""Memory for the slices of streams, reused from slice to slice and from volume to volume.

A page costs a page fault and its clearing when it is first used, so few pages are used often.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from zsnapdb.base.connection_rate import is_slow, rate_of

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 (madvise(2)): all pages of a range at once, which costs less than page faults."""

_MOST_POPULATED = 64 << 20
"""The most bytes to get ahead. A manifest says the sizes, and one that was altered may say too much."""


class SlotPool:
    """Slots that are free to be used again. Threads may share it.

    The slot that was given back last is taken first: its pages are there, and perhaps in the processor's cache. So a
    transfer uses no more memory than it needs at the same time.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._size = 1
        self._lock = threading.Lock()

    def take(self, size: int, *, filled: int = 0) -> memoryview:
        """Return a slot of at least `size` bytes, with any content. The first `filled` bytes are to be written now."""
        with self._lock:
            self._size = max(self._size, size)
            while self._free:
                slot = self._free.pop()
                if len(slot) >= size:
                    return slot
            size = self._size
        return _new_slot(size, filled)

    def give(self, slot: memoryview) -> None:
        """Take a slot back. Nobody uses it any more."""
        with self._lock:
            self._free.append(slot)

    def clear(self) -> None:
        """Give the memory of all free slots back to the system."""
        with self._lock:
            self._free.clear()

    @contextlib.contextmanager
    def lent(self, size: int) -> Iterator[memoryview]:
        """Lend a slot of at least `size` bytes for the block."""
        slot = self.take(size)
        try:
            yield slot
        finally:
            self.give(slot)


@dataclass(frozen=True)
class TransferMemory:
    """What the streams of one run use one after the other: slots for plain slices, and for their stored forms.

    The two are apart because a stored form is mostly smaller: its slots use fewer pages.
    """

    plain: SlotPool = field(default_factory=SlotPool)
    stored: SlotPool = field(default_factory=SlotPool)

    def clear(self) -> None:
        """Give the memory of all free slots back to the system."""
        self.plain.clear()
        self.stored.clear()


def _new_slot(size: int, filled: int) -> memoryview:
    """Return new memory. The system allocates its pages when they are first used, but those to be filled now."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(AttributeError, OSError):
        # Large pages, if the system has them, save page faults.
        memory.madvise(mmap.MADV_HUGEPAGE)
    if filled:
        with contextlib.suppress(OSError):
            memory.madvise(_POPULATE_WRITE, 0, min(filled, _MOST_POPULATED))
    return memoryview(memory)


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
