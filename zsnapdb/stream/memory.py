"""Memory for the slices of streams, reused from slice to slice and from volume to volume.

A page costs a page fault and its clearing when it is first used, so few pages are used often.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

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
