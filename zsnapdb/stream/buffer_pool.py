"""Memory for the slices of streams, reused from slice to slice and from volume to volume.

When a memory page is used for the first time, the kernel handles a page fault and clears the page. To avoid this cost,
a few pages are reused often.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from zsnapdb.base.deadline import is_slow, rate_of

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE (madvise(2), Linux 5.14) allocates all pages of a range, which costs less than page faults."""

_MOST_POPULATED = 64 << 20
"""Limit of preallocated bytes. A chunk's size comes from a manifest, and an altered manifest may contain huge sizes."""


class SlotPool:
    """A pool of free memory slots for reuse. Threads may share it.

    The slot that was returned last is taken first, because its pages are allocated and may be in the CPU cache. So the
    pool never grows beyond the slots that are in use simultaneously.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._size = 1
        self._lock = threading.Lock()

    def take(self, size: int, *, filled: int = 0) -> memoryview:
        """Return a slot of at least `size` bytes with arbitrary content.

        The caller will immediately fill the first `filled` bytes.
        """
        with self._lock:
            self._size = max(self._size, size)
            while self._free:
                slot = self._free.pop()
                if len(slot) >= size:
                    return slot
            size = self._size
        return _new_slot(size, filled)

    def give(self, slot: memoryview) -> None:
        """Return a slot to the pool. After that, no thread may use the slot."""
        with self._lock:
            self._free.append(slot)

    def clear(self) -> None:
        """Release the memory of all free slots to the system."""
        with self._lock:
            self._free.clear()

    @contextlib.contextmanager
    def lent(self, size: int) -> Iterator[memoryview]:
        """Provide a slot of at least `size` bytes during the block."""
        slot = self.take(size)
        try:
            yield slot
        finally:
            self.give(slot)


@dataclass(frozen=True)
class TransferMemory:
    """Memory that the streams of one run reuse: slots for plain slices, and slots for their stored forms.

    The two kinds are separate because stored forms are usually smaller than plain slices, so their slots use fewer
    pages.
    """

    plain: SlotPool = field(default_factory=SlotPool)
    stored: SlotPool = field(default_factory=SlotPool)

    def clear(self) -> None:
        """Release the memory of all free slots to the system."""
        self.plain.clear()
        self.stored.clear()


def _new_slot(size: int, filled: int) -> memoryview:
    """Return new memory with the first `filled` bytes preallocated. Other pages are allocated on first use."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(AttributeError, OSError):
        # Large pages, if the system provides them, cause fewer page faults.
        memory.madvise(mmap.MADV_HUGEPAGE)
    if filled:
        with contextlib.suppress(OSError):
            memory.madvise(_POPULATE_WRITE, 0, min(filled, _MOST_POPULATED))
    return memoryview(memory)


_MOST_CONNECTIONS = 16
"""Maximum number of parallel connections.

More connections are not faster, because they saturate the network or the server refuses them.
"""

_OF_A_SIZE = 64
"""The number of chunks of one size before the size doubles."""

FIRST_CHUNK = 8 << 20
"""The size of a stream's first chunks in bytes, unless the configured maximum is smaller."""


def chunk_size(index: int, first: int, most: int) -> int:
    """Return the size in bytes of the chunk with this number (from 1) of a stream. The last chunk may be smaller.

    The first chunks have `first` bytes, later chunks at most `most`.
    """
    doubled = min((index - 1) // _OF_A_SIZE, most.bit_length())
    return min(most, first << doubled)


class InFlight:
    """The number and bytes of slices in flight, with their limits. Threads may share it.

    `concurrency` workers and `waiting` slices that wait for a worker are always allowed. With `widens`, each slow
    transfer allows one more slice, as long as all slices together have at most `most_bytes`.
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
        """Wait until a slice of this size in bytes may start, and count it as in flight."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size))
            self._add(size)

    def try_take(self, size: int) -> bool:
        """If a slice of this size may start now, count it as in flight. Return whether it may start."""
        with self._changed:
            fits = self._fits(size)
            if fits:
                self._add(size)
            return fits

    def give(self, size: int) -> None:
        """Remove a finished slice of this size in bytes from the count."""
        with self._changed:
            self._slices -= 1
            self._bytes -= size
            self._changed.notify()

    def transferred(self, size: int, seconds: float) -> None:
        """Record the size in bytes and the duration of one transfer. A slow transfer allows another slice."""
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
