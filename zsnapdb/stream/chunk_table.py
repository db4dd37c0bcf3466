"""A compact table of the chunks of a stream. Tuples take five times the memory; a large backup has 500,000 chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import overload

from zsnapdb.stream.chunks import Chunk

_ROW = Struct("<I32sI32sH")
_NO_KEY = 0


class ChunkTable(Sequence[Chunk]):
    """The chunks of a stream, in order. A table equals a tuple of the same chunks."""

    __slots__ = ("_key_ids", "_rows")

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._key_ids: list[str | None] = [None]
        numbers: dict[str | None, int] = {None: _NO_KEY}
        rows = bytearray(_ROW.size * len(chunks))
        for at, (plain_size, plain_hash, stored_size, stored_sha256, key_id) in enumerate(chunks):
            number = numbers.get(key_id)
            if number is None:
                number = numbers[key_id] = len(self._key_ids)
                self._key_ids.append(key_id)
            hashes = bytes.fromhex(plain_hash), bytes.fromhex(stored_sha256)
            _ROW.pack_into(rows, at * _ROW.size, plain_size, hashes[0], stored_size, hashes[1], number)
        self._rows = bytes(rows)

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def __iter__(self) -> Iterator[Chunk]:
        return (self._chunk(*row) for row in _ROW.iter_unpack(self._rows))

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Chunk, ...]: ...
    def __getitem__(self, at: int | slice) -> Chunk | tuple[Chunk, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(len(self))))
        number = range(len(self))[at]
        return self._chunk(*_ROW.unpack_from(self._rows, number * _ROW.size))

    def _chunk(self, plain_size: int, plain: bytes, stored_size: int, stored: bytes, key: int) -> Chunk:
        return Chunk(plain_size, plain.hex(), stored_size, stored.hex(), self._key_ids[key])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ChunkTable):
            return (self._rows, self._key_ids) == (other._rows, other._key_ids)
        if isinstance(other, tuple):
            return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"ChunkTable({len(self)} chunks, {list(islice(self, 2))}…)"
