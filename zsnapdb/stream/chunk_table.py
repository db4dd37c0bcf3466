"""A compact table of the chunks of a stream. Tuples take five times the memory; a large backup has 500,000 chunks."""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NoReturn, Self, overload

from pydantic import TypeAdapter

from zsnapdb.stream.chunks import Chunk

_HASH = 32
_PIECE = 256 << 10
"""Bytes of JSON that are parsed at once. Parsed rows take several times their memory until the table has them."""
_ROWS = 4096
_NEXT_ROW = re.compile(rb"\],(?=\[)")


@functools.cache
def _adapter() -> TypeAdapter[list[Chunk]]:
    return TypeAdapter(list[Chunk])


class ChunkTable(Sequence[Chunk]):
    """The chunks of a stream, in order. A table equals a tuple of the same chunks."""

    __slots__ = ("_hashes", "_key_numbers", "_keys", "_sizes")

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        # Row by row: plain and stored size, plain and stored hash, and the number of the key id.
        self._sizes, self._hashes, self._keys = array("I"), bytearray(), array("I")
        self._key_numbers: dict[str | None, int] = {}
        for start in range(0, len(chunks), _ROWS):
            self._extend(chunks[start : start + _ROWS])

    @classmethod
    def parse(cls, rows: memoryview) -> Self:
        """Return the table of an array of rows in compact JSON, which begins and ends with its brackets.

        Raises: ValidationError if the rows are not chunks.
        """
        table, at, end = cls(), 1, len(rows) - 1
        while at < end:
            found = _NEXT_ROW.search(rows, min(at + _PIECE, end), end)
            stop = found.start() + 1 if found is not None else end
            table._extend(_adapter().validate_json(b"[%b]" % bytes(rows[at:stop])))
            at = stop + 1
        return table

    def _extend(self, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        plain_sizes, plain_hashes, stored_sizes, stored_hashes, key_ids = zip(*chunks, strict=True)
        for key_id in dict.fromkeys(key_ids):
            self._key_numbers.setdefault(key_id, len(self._key_numbers))
        self._sizes.extend(chain.from_iterable(zip(plain_sizes, stored_sizes, strict=True)))
        self._hashes += bytes.fromhex("".join(chain.from_iterable(zip(plain_hashes, stored_hashes, strict=True))))
        self._keys.extend(map(self._key_numbers.__getitem__, key_ids))

    @property
    def stored_size(self) -> int:
        """The size of the chunks in the store, in bytes."""
        return sum(self._sizes[1::2])

    @property
    def key_ids(self) -> tuple[str | None, ...]:
        """The key ids of the chunks, each once. None: a chunk is not encrypted."""
        return tuple(self._key_numbers)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Chunk]:
        key_ids, sizes = self.key_ids, iter(self._sizes)
        for number, (plain_size, stored_size, key) in enumerate(zip(sizes, sizes, self._keys, strict=True)):
            yield Chunk(plain_size, self._hash(2 * number), stored_size, self._hash(2 * number + 1), key_ids[key])

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Chunk, ...]: ...
    def __getitem__(self, at: int | slice) -> Chunk | tuple[Chunk, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(len(self))))
        number = range(len(self))[at]
        plain_size, stored_size = self._sizes[2 * number : 2 * number + 2]
        key_id = next(islice(self._key_numbers, self._keys[number], None))
        return Chunk(plain_size, self._hash(2 * number), stored_size, self._hash(2 * number + 1), key_id)

    def _hash(self, number: int) -> str:
        return self._hashes[number * _HASH : (number + 1) * _HASH].hex()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ChunkTable):
            return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)
        if isinstance(other, tuple):
            return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"ChunkTable({len(self)} chunks, {list(islice(self, 2))}…)"


class ChunkTotals(ChunkTable):
    """The totals of a table whose rows were checked and dropped: number, stored size and key ids."""

    __slots__ = ("_count", "_stored")

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        self._count = self._stored = 0
        super().__init__(chunks)

    def _extend(self, chunks: Sequence[Chunk]) -> None:
        self._count += len(chunks)
        self._stored += sum(chunk.stored_size for chunk in chunks)
        self._key_numbers |= dict.fromkeys((chunk.key_id for chunk in chunks), 0)

    @property
    def stored_size(self) -> int:
        return self._stored

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> NoReturn:
        raise TypeError("the rows of this table were dropped")

    def __getitem__(self, at: object) -> NoReturn:
        raise TypeError("the rows of this table were dropped")
