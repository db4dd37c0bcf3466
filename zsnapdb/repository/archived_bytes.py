"""The plain bytes of an archived binlog as a file that can be read anywhere. A chunk is fetched when it is needed."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from typing_extensions import Buffer

from zsnapdb.stream.chunks import Body

Load = Callable[[], Body]


class ArchivedBytes(io.RawIOBase):
    """An archived binlog, open for reading. `parts` has the size of each chunk and what loads it, proved by its hashes.

    Two chunks are in memory: a reader goes forward, and returns at most by one event.
    """

    def __init__(self, name: str, parts: Sequence[tuple[int, Load]]) -> None:
        super().__init__()
        self.name = name
        self._loads = [load for _, load in parts]
        self._ends = list(accumulate(size for size, _ in parts))
        self._recent: dict[int, Body] = {}
        self._loaded: set[int] = set()
        self._at = 0

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read anywhere: always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the place to read next, in bytes. Return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ends[-1] if self._ends else 0}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, target: Buffer, /) -> int:
        """Read into the target as much as one chunk has at this place. DamagedError if the chunk is damaged."""
        number = bisect_right(self._ends, self._at)
        view = memoryview(target).cast("B")
        if number == len(self._ends) or not len(view):
            return 0
        start = self._ends[number - 1] if number else 0
        piece = memoryview(self._chunk(number))[self._at - start :][: len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def load_rest(self) -> None:
        """Load every chunk that was not needed. DamagedError if one is damaged."""
        for number in range(len(self._loads)):
            if number not in self._loaded:
                self._chunk(number)

    def _chunk(self, number: int) -> Body:
        if number not in self._recent:
            while len(self._recent) > 1:
                self._recent.pop(next(iter(self._recent)))
            self._recent[number] = self._loads[number]()
            self._loaded.add(number)
        return self._recent[number]
