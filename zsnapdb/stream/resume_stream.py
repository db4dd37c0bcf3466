"""Conversion of a stored stream into the remaining stream that an interrupted `zfs receive -s` still needs.

`zfs receive` resumes with a stream whose BEGIN record contains the feature "resuming" and the last received record. The
stream starts with this record again (dmu_recv_resume_begin_check and resume_check in module/zfs/dmu_recv.c). `zfs send
-t` creates such a stream from a snapshot; this module creates it from the stored stream.

Every record has the fletcher-4 checksum of all earlier bytes, so a different BEGIN record changes all checksums. The
new checksums are not computed from the bytes. Fletcher-4 is linear, so the difference between the old and the new sum
depends only on the number of words and on the replaced checksums. Therefore `zfs receive` still verifies each payload
against the checksum that `zfs send` computed.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import DamagedError, ZsnapdbError
from zsnapdb.stream.send_stream_checks import (
    BEGIN,
    CHECKSUM_AT,
    END,
    GUID_AT,
    OBJECT,
    RECORD_BYTES,
    WRITE,
    ExpectedStream,
    Walker,
    parse_begin,
    payload_size,
)

LITTLE_ENDIAN = b"\0\1"
"""The first bytes of an nvlist in the native encoding of a little-endian host."""
_HEADER, _PAIR = 12, struct.Struct("<iHxxii")
_NUMBER, _LIST, _BYTES = 8, 19, 26
_LIST_BYTES = 24
_END = bytes(4)

Value = int | bytes | Mapping[str, "Value"]


def read_nvlist(data: bytes) -> Mapping[str, Value]:
    """Return the pairs of an nvlist. Pairs whose values are not numbers, bytes or nvlists are omitted.

    Raises ValueError or struct.error if the bytes are not an nvlist.
    """
    if data[:2] != LITTLE_ENDIAN:
        raise ValueError("the nvlist is not in native little-endian encoding")
    return _pairs(data, _HEADER, nested=True)[0]


def with_nvlist_numbers(data: bytes, numbers: Mapping[str, int]) -> bytes:
    """Return the nvlist with unsigned 64-bit numbers appended. `data` is empty for a new nvlist.

    Raises ValueError if `data` is not an nvlist in the native encoding of a little-endian host.
    """
    before = data or LITTLE_ENDIAN + bytes(6) + b"\1" + bytes(3) + _END
    if before[:2] != LITTLE_ENDIAN or before[-4:] != _END:
        raise ValueError("the nvlist is not in native little-endian encoding")
    pairs = []
    for name, number in numbers.items():
        text = name.encode() + b"\0"
        begin = (_PAIR.size + len(text) + 7) // 8 * 8
        head = _PAIR.pack(begin + 8, len(text), 1, _NUMBER) + text
        pairs.append(head.ljust(begin, b"\0") + struct.pack("<Q", number))
    return before[:-4] + b"".join(pairs) + _END


def _pairs(data: bytes, at: int, *, nested: bool) -> tuple[dict[str, Value], int]:
    """Return the pairs of an nvlist, and the offset after the nvlist."""
    pairs: dict[str, Value] = {}
    while (size := struct.unpack_from("<i", data, at)[0]) != 0:
        _, length, count, kind = _PAIR.unpack_from(data, at)
        begin, end = at + (_PAIR.size + length + 7) // 8 * 8, at + size
        if not at < begin <= end <= len(data):
            raise ValueError("a pair is longer than the list")
        name, value = data[at + _PAIR.size : at + _PAIR.size + length - 1].decode(), data[begin:end]
        at = end
        if kind == _NUMBER:
            pairs[name] = int(struct.unpack("<Q", value)[0])
        elif kind == _BYTES and 0 <= count <= len(value):
            pairs[name] = value[:count]
        elif kind == _LIST:
            if not nested or len(value) != _LIST_BYTES:
                raise ValueError("a list is nested in a list")
            pairs[name], at = _pairs(data, at, nested=False)
    return pairs, at + 4


_TOKEN = re.compile(r"1-[0-9a-f]{1,16}-([0-9a-f]{1,8})-((?:[0-9a-f]{2})+)")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class ResumePoint:
    """The last received record: the OBJECT record of `object`, or its WRITE record at `offset` (bytes).

    `received` is the approximate number of received bytes of the stream. The received bytes include the record, and
    possibly a few MiB after it. `from_guid` is 0 for a full stream.
    """

    object: int
    offset: int
    received: int
    to_guid: int
    from_guid: int

    @property
    def key(self) -> tuple[int, int]:
        """The sort key of the record: OBJECT and WRITE records are in this order in a stream."""
        return self.object, self.offset


def parse_token(token: str) -> ResumePoint:
    """Return the resume point in a ZFS resume token. Raises DamagedError if the token's format is unknown."""
    matched = _TOKEN.fullmatch(token)
    try:
        if matched is None or not 0 < int(matched[1], 16) <= _MOST_BYTES:
            raise ValueError("it has an unknown form")
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(bytes.fromhex(matched[2]), _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it was cut")
        listed = read_nvlist(packed)
        numbers = {name: value for name, value in listed.items() if isinstance(value, int)}
        return ResumePoint(
            object=numbers["object"],
            offset=numbers["offset"],
            received=numbers["bytes"],
            to_guid=numbers["toguid"],
            from_guid=numbers.get("fromguid", 0),
        )
    except (ValueError, KeyError, zlib.error, struct.error) as error:
        raise DamagedError(
            f"the resume token of ZFS cannot be read: {error}",
            hint="check whether OpenZFS is newer than this zsnapdb supports",
        ) from error


_RESUMING = 1 << 20
_VERSION_AT, _FEATURES_SHIFT = 16, 2
_U32, _U64, _SUM = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<4Q")
_WORDS_OF_A_SUM = struct.Struct("<8I")
_OBJECT_AT, _OFFSET_AT, _END_SUM_AT = 8, 24, 8
_HEAD_WORDS = CHECKSUM_AT // 4
_MASK = (1 << 64) - 1
_MOST_PAYLOAD = 1 << 24
"""The largest block of ZFS (SPA_MAXBLOCKSIZE)."""
_MOST_TRIED = 64
"""Maximum number of occurrences of the snapshot's GUID that are tried as headers.

In a real stream, one of the first occurrences is in a header.
"""

Sums = tuple[int, int, int, int]


class NotResumableError(ZsnapdbError):
    """The stored stream does not match the interrupted receive. The stream can be received from its start."""


def resuming_begin(begin: bytes, point: ResumePoint) -> bytes:
    """Return the BEGIN record, with its payload, of the stream that resumes at `point`.

    `begin` is the BEGIN record of the stored stream.

    Raises NotResumableError if the stream is from a big-endian host, or if it is not the interrupted stream.
    """
    facts = parse_begin(begin)
    if _U32.unpack_from(begin, 0)[0] != BEGIN or begin[8:9] == b"\0":
        raise NotResumableError("the stream was made by a big-endian host")
    if (facts.to_guid, facts.from_guid) != (point.to_guid, point.from_guid):
        raise NotResumableError(
            f"the interrupted stream led from GUID {point.from_guid} to {point.to_guid}, the stored one leads from"
            f" {facts.from_guid} to {facts.to_guid}",
        )
    try:
        payload = with_nvlist_numbers(
            begin[RECORD_BYTES : RECORD_BYTES + facts.payload_size],
            {"resume_object": point.object, "resume_offset": point.offset},
        )
    except ValueError as error:
        raise NotResumableError(f"the first record of the stream cannot be continued: {error}") from error
    head = bytearray(begin[:RECORD_BYTES])
    version = _U64.unpack_from(head, _VERSION_AT)[0]
    _U64.pack_into(head, _VERSION_AT, version | _RESUMING << _FEATURES_SHIFT)
    _U32.pack_into(head, 4, len(payload))
    return bytes(head) + payload


def first_place(slice_: memoryview, to_guid: int) -> tuple[int, int] | None:
    """Return object and offset of the first OBJECT or WRITE record in a slice of a stream.

    The result is None if the slice has no such record.
    """
    at = _first_record(slice_, to_guid)
    while at is not None and at + RECORD_BYTES <= len(slice_):
        head = bytes(slice_[at : at + RECORD_BYTES])
        if not _is_record(head, to_guid):
            return None
        place = _place(head)
        if place is not None:
            return place
        at += RECORD_BYTES + payload_size(head, "<")
    return None


class ResumedStream:
    """A filter that yields a new BEGIN record and the rest of a stored stream, slice by slice."""

    def __init__(self, begin: bytes, point: ResumePoint, expected: ExpectedStream) -> None:
        """`begin` is the stored stream's BEGIN record with its payload.

        `expected` is the required content of this record. Raises DamagedError if the record's content differs, and
        NotResumableError in the same cases as `resuming_begin`.
        """
        self.begin = resuming_begin(begin, point)
        self._walker = Walker(expected)
        self._walker.feed(memoryview(begin))
        self._point, self._stored_begin = point, len(begin)
        self._is_found = False
        self._partial = bytearray()
        self._skip = 0
        self._words = 0
        self._difference: Sums = (0, 0, 0, 0)
        self._is_synchronised = False

    def begin_with_the_whole(self) -> None:
        """Expect that the next slice is the stored stream's first slice, which starts with the BEGIN record."""
        self._skip, self._is_synchronised = self._stored_begin, True

    def feed(self, slice_: memoryview, *, last: bool) -> Iterator[memoryview]:
        """Yield the bytes to write, in order. The slice must be writable and is modified.

        The first slice must have an OBJECT or WRITE record before the record of the resume point. Raises
        NotResumableError if the record is not in the stream, and DamagedError in the same cases as `Walker.feed`.
        """
        start, begin = 0, b""
        if not self._is_found:
            found = self._find(slice_)
            if found is None:
                if last:
                    raise self._missing()
                return
            head, start = found
            # The bytes before the record were already received. The record's header bytes from the previous slice are
            # written first.
            self._is_found, self._partial, self._skip = True, bytearray(head), 0
            self._walker.feed(memoryview(head))
            begin = self.begin
        rest = slice_[start:]
        self._walker.feed(rest)
        if last:
            self._walker.finish()
        if begin:
            yield memoryview(begin)
        yield from self._exchanged(rest)

    def _missing(self) -> NotResumableError:
        return NotResumableError(
            f"the stored stream has no record of object {self._point.object} at {self._point.offset}, with which the"
            " interrupted receive ended",
        )

    def _find(self, slice_: memoryview) -> tuple[bytes, int] | None:
        """Return the header bytes of the record that were in the previous slice, and the offset of the rest.

        The result is None if the record is not found.
        """
        if not self._is_synchronised:
            first = _first_record(slice_, self._point.to_guid)
            if first is None:
                raise self._missing()
            self._skip, self._is_synchronised = first, True
        at = self._skip
        while at < len(slice_):
            missing = RECORD_BYTES - len(self._partial)
            if at + missing > len(slice_):
                self._partial += slice_[at:]
                at = len(slice_)
                break
            before = bytes(self._partial)
            head = before + bytes(slice_[at : at + missing])
            self._partial.clear()
            if not _is_record(head, self._point.to_guid):
                raise self._missing()
            place = _place(head)
            if place is not None and place >= self._point.key:
                if place != self._point.key:
                    raise self._missing()
                return before, at
            at += missing + payload_size(head, "<")
        self._skip = at - len(slice_)
        return None

    def _exchanged(self, rest: memoryview) -> Iterator[memoryview]:
        """Replace the checksums of the headers in a slice. An incomplete header is completed by the next slice."""
        at, size = self._skip, len(rest)
        begin = 0
        if self._partial and at == 0:
            missing = min(RECORD_BYTES - len(self._partial), size)
            self._partial += rest[:missing]
            begin = at = missing
            if len(self._partial) == RECORD_BYTES:
                head = memoryview(self._partial)
                self._partial = bytearray()
                at += self._exchange(head, 0)
                yield head
        last = size - RECORD_BYTES
        while at <= last:
            at += RECORD_BYTES + self._exchange(rest, at)
        if at < size:
            self._partial += rest[at:]
            yield rest[begin:at]
            at = size
        else:
            yield rest[begin:]
        self._skip = at - size

    def _exchange(self, data: memoryview, at: int) -> int:
        """Replace the checksums in the header at `at`. Return the size of the record's payload in bytes."""
        kind = _U32.unpack_from(data, at)[0]
        head = bytes(data[at : at + RECORD_BYTES])
        old = _SUM.unpack_from(head, CHECKSUM_AT)
        if not self._words:
            sums = _added(_added((0, 0, 0, 0), self.begin), head[:CHECKSUM_AT])
            if not any(old):
                raise NotResumableError("the records of the stream have no checksums")
            self._difference = _minus(sums, old)
        elif kind == END:
            self._go_on(self._words - _HEAD_WORDS)
            ended = _SUM.unpack_from(head, _END_SUM_AT)
            new = _plus(ended, self._difference)
            self._go_on(_END_SUM_AT // 4)
            self._exchange_sum(ended, new)
            _SUM.pack_into(data, at + _END_SUM_AT, *new)
            self._go_on((CHECKSUM_AT - _END_SUM_AT - _SUM.size) // 4)
        else:
            self._go_on(self._words)
        if any(old):
            new = _plus(old, self._difference)
            self._exchange_sum(old, new)
            _SUM.pack_into(data, at + CHECKSUM_AT, *new)
        else:
            self._go_on(_SUM.size // 4)
        payload = payload_size(head, "<")
        self._words = payload // 4 + _HEAD_WORDS
        return payload

    def _go_on(self, words: int) -> None:
        """Update the difference after `words` words that are equal in both streams."""
        a, b, c, d = self._difference
        once = words * (words + 1) // 2
        self._difference = (
            a,
            (b + words * a) & _MASK,
            (c + words * b + once * a) & _MASK,
            (d + words * c + once * b + once * (words + 2) // 3 * a) & _MASK,
        )

    def _exchange_sum(self, old: Sums, new: Sums) -> None:
        """Update the difference after a checksum that is `old` in the stored stream and `new` in the new stream."""
        a, b, c, d = self._difference
        for is_, was in zip(
            _WORDS_OF_A_SUM.unpack(_SUM.pack(*new)), _WORDS_OF_A_SUM.unpack(_SUM.pack(*old)), strict=True
        ):
            a += is_ - was
            b += a
            c += b
            d += c
        self._difference = (a & _MASK, b & _MASK, c & _MASK, d & _MASK)


def _added(sums: Sums, data: bytes) -> Sums:
    """Return the fletcher-4 sums after more bytes, whose number is a multiple of four."""
    a, b, c, d = sums
    for word in struct.unpack(f"<{len(data) // 4}I", data):
        a += word
        b += a
        c += b
        d += c
    return a & _MASK, b & _MASK, c & _MASK, d & _MASK


def _plus(one: Sums, other: Sums) -> Sums:
    a, b, c, d = one
    e, f, g, h = other
    return (a + e) & _MASK, (b + f) & _MASK, (c + g) & _MASK, (d + h) & _MASK


def _minus(one: Sums, other: Sums) -> Sums:
    a, b, c, d = one
    e, f, g, h = other
    return (a - e) & _MASK, (b - f) & _MASK, (c - g) & _MASK, (d - h) & _MASK


def _place(head: bytes) -> tuple[int, int] | None:
    """Return object and offset of an OBJECT or WRITE record; None for other records."""
    kind = _U32.unpack_from(head, 0)[0]
    if kind not in (OBJECT, WRITE):
        return None
    object_ = int(_U64.unpack_from(head, _OBJECT_AT)[0])
    return object_, int(_U64.unpack_from(head, _OFFSET_AT)[0]) if kind == WRITE else 0


def _is_record(head: bytes, to_guid: int) -> bool:
    """Whether the 312 bytes are a record header in the stream that creates the snapshot with this GUID."""
    kind = int(_U32.unpack_from(head, 0)[0])
    return (
        BEGIN < kind < len(GUID_AT)
        and _U64.unpack_from(head, GUID_AT[kind])[0] == to_guid
        and payload_size(head, "<") <= _MOST_PAYLOAD
        and payload_size(head, "<") % 4 == 0
    )


def _first_record(slice_: memoryview, to_guid: int) -> int | None:
    """Return the offset of the first record in a slice of a stream; None if the slice has no two complete headers.

    A header contains the snapshot's GUID. ZFS chose this random number after the data was written, so the data cannot
    contain it. A candidate is accepted only if another header follows the candidate's payload.
    """
    size = len(slice_)
    for hit in itertools.islice(re.finditer(re.escape(_U64.pack(to_guid)), slice_), _MOST_TRIED):
        for place in sorted(set(GUID_AT), reverse=True):
            at = hit.start() - place
            if at < 0 or at + RECORD_BYTES > size:
                continue
            head = bytes(slice_[at : at + RECORD_BYTES])
            following = at + RECORD_BYTES + payload_size(head, "<")
            if not _is_record(head, to_guid) or following + RECORD_BYTES > size:
                continue
            if _is_record(bytes(slice_[following : following + RECORD_BYTES]), to_guid):
                return at
    return None
