"""Row events of MySQL 9.6 and later, changed so that a server that applies them changes no other rows.

Such a source logs the rows that a foreign key changes as row events of their own (refman 9.7, "Replication and Foreign
Keys"). Its row events have the flag USE_SQL_FOREIGN_KEY_F. But a server that applies a deletion or an update follows
the foreign keys again, which can change other rows than on the source. With REPLACE, MySQL 9.7.4 keeps the rows that
reference the replaced row. The applier deletes these rows, or fails because a row is missing. With the flag
NO_FOREIGN_KEY_CHECKS_F, it applies only the logged rows. A source sets this flag if foreign_key_checks is off.
tests/system/test_points.py and the campaign `cascades` test this with real servers.

Flags: MySQL libs/mysql/binlog/event/rows_event.h, Rows_event::enum_flag.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from zsnapdb.mysql.binlog.event_bytes import EventBytes, compressor, in_file, payload
from zsnapdb.mysql.binlog.events import HEADER, MAGIC, MALFORMED, PAYLOAD, malformed

_CHANGES = frozenset({31, 32, 39})
"""Event types of updated and deleted rows. The insertion of a row changes no other row."""
_NO_CHECKS, _IN_SERVER = 2, 16
_FLAGS_AT = HEADER.size + 6
"""Place of a row event's flags, after its header and the number of its table."""
_WINDOW = 1 << 20
_CHECKSUM = 4
_ZSTD = 0


def write_changed(
    file: BinaryIO, name: str, start: int, places: Iterable[int], create: Callable[[], BinaryIO]
) -> Mapping[int, int] | None:
    """Write a copy of a MySQL binlog whose events, from the offset `start` on, follow no foreign keys.

    The keys of the result are the `places`, which are offsets of events; the values are the new offsets. Only
    compressed transactions change their length. The event headers keep the source's positions. If no event follows
    foreign keys, or the file is encrypted, return None, and do not call `create`. Memory use is constant.

    Raises:
        DamagedError: an event is malformed.
    """
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        return None
    waiting = deque(sorted(places))
    moved: dict[int, int] = {}
    out: BinaryIO | None = None
    kept = delta = 0
    checksum = _checksum_bytes(file)
    for kind, at, length in _events(file, name, start):
        if kind == PAYLOAD and not _follows_inside(file, name, at, length - checksum):
            continue
        out = out or create()
        while waiting and waiting[0] <= at:
            place = waiting.popleft()
            moved[place] = place + delta
        _copy(file, kept, at, out)
        kept = at + length
        out.writelines(_checked(_changed(file, name, kind, at, kept - checksum), checksum))
        delta = out.tell() - kept
    if out is None:
        return None
    moved |= {place: place + delta for place in waiting}
    _copy(file, kept, file.seek(0, os.SEEK_END), out)
    return moved


def _checksum_bytes(file: BinaryIO) -> int:
    """Return the length of an event's checksum. The format description says whether the events have checksums."""
    file.seek(len(MAGIC))
    length = HEADER.unpack(file.read(HEADER.size))[3]
    file.seek(len(MAGIC) + length - _CHECKSUM - 1)
    return _CHECKSUM if file.read(1) == b"\1" else 0


def _checked(pieces: Iterable[bytes], checksum: int) -> Iterator[bytes]:
    """Yield the pieces of an event and its checksum, if it has `checksum` bytes."""
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
        yield piece
    if checksum:
        yield crc.to_bytes(checksum, "little")


def _events(file: BinaryIO, name: str, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield the type, offset and length of the row changes that follow foreign keys, and of all payload events.

    An incomplete last event is left out. The caller may change the file's offset.
    """
    at, unpack, size = start, HEADER.unpack_from, file.seek(0, os.SEEK_END)
    while at + HEADER.size <= size:
        file.seek(at)
        window = file.read(_WINDOW)
        place, last = 0, len(window) - _FLAGS_AT - 1
        while place <= last:
            _, kind, _, length, _, _ = unpack(window, place)
            if length < HEADER.size:
                raise malformed(name, ValueError(f"it has {length} bytes"), at + place)
            if at + place + length > size:
                return
            if kind == PAYLOAD or (kind in _CHANGES and _follows(window[place + _FLAGS_AT])):
                yield kind, at + place, length
            place += length
        if place == 0:
            return
        at += place


def _follows(flags: int) -> bool:
    return flags & (_IN_SERVER | _NO_CHECKS) == _IN_SERVER


def _follows_inside(file: BinaryIO, name: str, at: int, length: int) -> bool:
    """Return whether a TRANSACTION_PAYLOAD event contains row changes that follow foreign keys."""
    try:
        return any(is_changed for is_changed, _ in _changed_events(_payload(file, at, at + length)))
    except MALFORMED as error:
        raise malformed(name, error, at) from error


def _payload(file: BinaryIO, at: int, end: int) -> EventBytes:
    return payload(EventBytes(in_file(file, at + HEADER.size, end)))


def _changed(file: BinaryIO, name: str, kind: int, at: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a changed event without its checksum."""
    try:
        yield from _changed_payload(file, at, end) if kind == PAYLOAD else _changed_rows(file, at, end)
    except MALFORMED as error:
        raise malformed(name, error, at) from error


def _changed_rows(file: BinaryIO, at: int, end: int) -> Iterator[bytes]:
    pieces = in_file(file, at, end)
    first = bytearray(next(pieces))
    first[_FLAGS_AT] |= _NO_CHECKS
    yield bytes(first)
    yield from pieces


def _changed_events(events: EventBytes) -> Iterator[tuple[bool, bytes]]:
    """Yield the bytes of a payload's events, changed, and whether a piece was changed. The events have no checksums."""
    while not events.is_at_end():
        head = bytearray(events.take(HEADER.size))
        _, kind, _, length, _, _ = HEADER.unpack(head)
        left = length - HEADER.size
        if left < 0:
            raise ValueError(f"an event in it has {length} bytes")
        is_changed = False
        if kind in _CHANGES and left > _FLAGS_AT - HEADER.size:
            more = _FLAGS_AT + 1 - HEADER.size
            head += events.take(more)
            left -= more
            is_changed = _follows(head[_FLAGS_AT])
            head[_FLAGS_AT] |= _NO_CHECKS if is_changed else 0
        yield is_changed, bytes(head)
        for piece in events.pieces(left):
            yield False, bytes(piece)


def _changed_payload(file: BinaryIO, at: int, end: int) -> Iterator[bytes]:
    """Yield a TRANSACTION_PAYLOAD event with changed events, without its checksum.

    The events are compressed twice, because their compressed size precedes them.
    """
    plain = size = 0
    machine = compressor()
    for _, piece in _changed_events(_payload(file, at, end)):
        plain += len(piece)
        size += len(machine.compress(piece))
    size += len(machine.flush())
    values = ((2, _packed(_ZSTD)), (3, _packed(plain)), (1, _packed(size)))
    fields = b"".join(bytes([kind, len(value)]) + value for kind, value in values) + b"\0"
    file.seek(at)
    when, kind, server_id, old, following, flags = HEADER.unpack(file.read(HEADER.size))
    whole = HEADER.size + len(fields) + size + (at + old - end)
    yield HEADER.pack(when, kind, server_id, whole, following, flags) + fields
    machine = compressor()
    for _, piece in _changed_events(_payload(file, at, end)):
        yield machine.compress(piece)
    yield machine.flush()


def _packed(number: int) -> bytes:
    """Return an integer of variable length, as net_store_length() of MySQL writes it."""
    if number < 251:
        return bytes([number])
    return b"\xfe" + number.to_bytes(8, "little")


def _copy(file: BinaryIO, start: int, end: int, out: BinaryIO) -> None:
    for piece in in_file(file, start, end):
        out.write(piece)
