"""A forward reader for the body of a binlog event.

It reads the body in pieces, so its memory use does not depend on the event's length.

All functions raise ValueError if the bytes end too early or are malformed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO, cast

import zstandard

from zsnapdb.mysql.binlog.events import HEADER

_PIECE = 1 << 18
_MOST_TAKEN = 1 << 20
_MOST_WINDOW = 1 << 27
"""Window size of the highest zstd level (zstd manual, ZSTD_WINDOWLOG_LIMIT_DEFAULT)."""


class EventBytes:
    """The bytes of an event, which can be read once, from first to last."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. The maximum is 1 MiB."""
        end = self._at + count
        if end <= len(self._piece):
            taken = bytes(self._piece[self._at : end])
            self._at = end
            return taken
        if count > _MOST_TAKEN:
            raise ValueError(f"a part has {count} bytes")
        parts = bytearray()
        while len(parts) < count:
            if self.is_at_end():
                raise ValueError("it ends too early")
            more = self._piece[self._at : self._at + count - len(parts)]
            parts += more
            self._at += len(more)
        return bytes(parts)

    def up_to(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end of the event."""
        parts = bytearray()
        while len(parts) < count and not self.is_at_end():
            more = self._piece[self._at : self._at + count - len(parts)]
            parts += more
            self._at += len(more)
        return bytes(parts)

    def skip(self, count: int) -> None:
        end = self._at + count
        if end <= len(self._piece):
            self._at = end
            return
        for _ in self.pieces(count):
            pass

    def is_at_end(self) -> bool:
        while self._at >= len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._piece, self._at = memoryview(piece), 0
        return False

    def pieces(self, count: int) -> Iterator[memoryview]:
        while count > 0:
            if self.is_at_end():
                raise ValueError("it ends too early")
            piece = self._piece[self._at : self._at + count]
            self._at += len(piece)
            count -= len(piece)
            yield piece

    def rest(self) -> Iterator[memoryview]:
        while not self.is_at_end():
            piece = self._piece[self._at :]
            self._at = len(self._piece)
            yield piece

    def integer(self, count: int) -> int:
        """Return an unsigned little-endian integer of `count` bytes."""
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        """Return an integer of variable length, in the format of net_field_length() in MySQL and MariaDB."""
        first = self.take(1)[0]
        if first < 251:
            return first
        length = {252: 2, 253: 3, 254: 8}.get(first)
        if length is None:
            raise ValueError(f"a length begins with {first}")
        return self.integer(length)


def in_file(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `end` in pieces.

    After each piece, callers may change the file's offset.
    """
    while start < end:
        file.seek(start)
        piece = file.read(min(_PIECE, end - start))
        if not piece:
            raise ValueError("it ends too early")
        start += len(piece)
        yield piece


def inflated(compressed: EventBytes) -> Iterator[bytes]:
    """Yield the decompressed bytes of an event part that MariaDB compressed.

    The first byte is a header (MariaDB sql/log_event.cc, binlog_buf_compress). The header's highest bit is set, bits 4
    to 6 are the algorithm (0: zlib), and bits 0 to 2 are the length of the size field. The plain size (big-endian) and
    the zlib data follow.
    """
    head = compressed.take(1)[0]
    if not head & 0x80 or head & 0x70 or not 1 <= head & 0x07 <= 4:
        raise ValueError(f"a compressed part begins with {head:#04x}")
    left = int.from_bytes(compressed.take(head & 0x07), "big")
    machine = zlib.decompressobj()
    try:
        for piece in compressed.rest():
            data: bytes | memoryview = piece
            while data and not machine.eof:
                plain = machine.decompress(data, _PIECE)
                left -= len(plain)
                if left < 0:
                    raise ValueError("a compressed part is longer than it says")
                yield plain
                data = machine.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"a compressed part cannot be read: {error}") from error
    if left:
        raise ValueError("a compressed part is shorter than it says")


class _Source:
    def __init__(self, compressed: EventBytes) -> None:
        self._compressed = compressed

    def read(self, count: int = -1) -> bytes:
        return self._compressed.up_to(_PIECE if count < 0 else count)


def payload(body: EventBytes) -> EventBytes:
    """Return the decompressed events inside a TRANSACTION_PAYLOAD event as bytes.

    The format (libs/mysql/binlog/event/codecs/binary.cpp of MySQL) is a list of fields with type, length and value, all
    of variable length. Field 1 is the payload size, field 2 the compression (0: zstd, 255: none), and field 3 the
    uncompressed size. Type 0 marks the end of the fields, without a length or value.
    """
    compression = 255
    while kind := body.packed():
        value = EventBytes([body.take(body.packed())])
        if kind == 2:
            compression = value.packed()
    if compression == 255:
        return EventBytes(body.rest())
    if compression != 0:
        raise ValueError(f"a payload has the unknown compression {compression}")
    return EventBytes(_unzstd(body))


def inner_events(events: EventBytes) -> Iterator[tuple[int, int, EventBytes]]:
    """Yield the time, type and body of each event in a Transaction_payload_event (MySQL).

    The events in the payload have no checksums.
    """
    while not events.is_at_end():
        when, kind, _, length, _, _ = HEADER.unpack(events.take(HEADER.size))
        if length < HEADER.size:
            raise ValueError(f"invalid event size in a transaction payload: {length} bytes")
        pieces = events.pieces(length - HEADER.size)
        yield when, kind, EventBytes(pieces)
        for _ in pieces:
            pass


def compressor() -> zstandard.ZstdCompressionObj:
    """Return a compressor for the events inside a TRANSACTION_PAYLOAD event."""
    return zstandard.ZstdCompressor(level=1).compressobj()


def _unzstd(compressed: EventBytes) -> Iterator[bytes]:
    machine = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    source = cast(IO[bytes], _Source(compressed))
    try:
        with machine.stream_reader(source, read_size=_PIECE, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                yield piece
    except zstandard.ZstdError as error:
        raise ValueError(f"a payload cannot be read: {error}") from error
