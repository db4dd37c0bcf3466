"""Walks over the records of a ZFS send stream as it passes by: headers are read, payloads skipped, nothing is copied.

Layout: `struct dmu_replay_record` in OpenZFS include/sys/zfs_ioctl.h (the same from 2.0 to 2.4): 312 bytes in the byte
order of the sending host, beginning with the type (u32); how long the payload behind it is depends on the type
(`record_payload_size` in cmd/zstream). Every record but BEGIN ends with a fletcher-4 of all bytes before it, and names
the snapshot it leads to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from zsnapdb.errors import DamagedError

RECORD_BYTES = 312
_MAGIC = 0x2F5BACBAC
_SUBSTREAM = 1
"""The header type (bits 0-1 of the version info) of a stream of one snapshot.

2 is a package of several (`zfs send -R`).
"""

_BEGIN, _OBJECT, _WRITE, _END, _SPILL, _EMBEDDED = 0, 1, 3, 5, 7, 8
_NAMES = (
    "BEGIN",
    "OBJECT",
    "FREEOBJECTS",
    "WRITE",
    "FREE",
    "END",
    "WRITE_BYREF",
    "SPILL",
    "WRITE_EMBEDDED",
    "OBJECT_RANGE",
    "REDACT",
)
_GUID_AT = (40, 40, 24, 40, 32, 40, 32, 24, 32, 24, 32)
"""Where a record of each type has the GUID of its snapshot."""

_CHECKSUM_AT = 280


@dataclass(frozen=True)
class Begin:
    """What a stream says of itself in its first record. `from_guid` is 0 for a full stream."""

    features: int
    to_guid: int
    from_guid: int


def _order(first: bytes) -> str | None:
    for order in "<>":
        if struct.unpack_from(order + "Q", first, 8)[0] == _MAGIC:
            return order
    return None


def parse_begin(first: bytes | memoryview) -> Begin:
    """Return the BEGIN record at the start of a stream. DamagedError if there is none."""
    head = bytes(first[:RECORD_BYTES])
    order = _order(head) if len(head) == RECORD_BYTES else None
    if order is None or struct.unpack_from(order + "I", head, 0)[0] != _BEGIN:
        raise DamagedError(
            "the stream does not start with a BEGIN record", hint="`zfs send` wrote something else; see its messages"
        )
    _, version, _, _, _, to_guid, from_guid = struct.unpack_from(order + "QQQIIQQ", head, 8)
    if version & 3 != _SUBSTREAM:
        raise DamagedError(
            "the stream is not that of one snapshot", hint="`zfs send` was run with other options than ours"
        )
    return Begin(features=(version >> 2) & 0x3FFFFFFF, to_guid=to_guid, from_guid=from_guid)


def _round_up(size: int) -> int:
    return (size + 7) & ~7


class Walker:
    """Follows a stream from its first byte to its END, slice by slice.

    `begin` is None until the first record was seen.
    """

    def __init__(self) -> None:
        self.begin: Begin | None = None
        self.records = 0
        self._ended = False
        self._order = "<"
        self._write = struct.Struct("<")
        self._partial = bytearray()
        self._skip = 0
        self._done = 0

    def feed(self, piece: memoryview) -> None:
        """Walk on over the next bytes of the stream.

        DamagedError names the first record that does not belong there, and its offset.
        """
        size = len(piece)
        at = self._skip
        if self._partial:
            missing = RECORD_BYTES - len(self._partial)
            self._partial += piece[:missing]
            if len(self._partial) < RECORD_BYTES:
                self._done += size
                return
            at = missing + self._header(memoryview(self._partial), 0, self._done + missing - RECORD_BYTES)
            self._partial = bytearray()
        if self.begin is None and size - at >= RECORD_BYTES:
            at += RECORD_BYTES + self._header(piece, at, self._done + at)
        at = self._walk(piece, at, size)
        if at < size:
            if self._ended:
                raise DamagedError(
                    f"the stream goes on behind its END record, at byte {self._done + at}",
                    hint="`zfs send` was run with other options than ours",
                )
            self._partial += piece[at:]
            at = size
        self._skip = at - size
        self._done += size

    def _walk(self, piece: memoryview, at: int, size: int) -> int:
        """Walk over all whole headers from `at` on; return where the next one begins.

        A WRITE, as nearly all are, is looked at here.
        """
        unpack, guid, records = self._write.unpack_from, self.begin.to_guid if self.begin else 0, 0
        last = size - RECORD_BYTES
        while at <= last and not self._ended:
            kind, logical, to_guid, compression, compressed = unpack(piece, at)
            if kind == _WRITE and to_guid == guid:
                records += 1
                at += RECORD_BYTES + (compressed if compression else logical)
            else:
                at += RECORD_BYTES + self._header(piece, at, self._done + at)
        self.records += records
        return at

    def _header(self, piece: memoryview, at: int, offset: int) -> int:
        """Look at one record of any type, `offset` bytes into the stream; return the bytes of its payload."""
        with piece[at : at + RECORD_BYTES] as view:
            head = bytes(view)
        if self.begin is None:
            self.begin = parse_begin(head)
            self._order = _order(head) or "<"
            # type, logical size, GUID, compression, compressed size of a WRITE
            self._write = struct.Struct(self._order + "I28xQQ2xB45xQ")
            self.records += 1
            return self._u32(head, 4)
        kind = self._u32(head, 0)
        if kind >= len(_NAMES):
            raise DamagedError(
                f"the record at byte {offset} of the stream is of type {kind}, which is not known",
                hint="is this OpenZFS newer than zsnapdb?",
            )
        if kind == _BEGIN:
            raise DamagedError(
                f"a second BEGIN record, at byte {offset} of the stream",
                hint="`zfs send` was run with other options than ours",
            )
        guid = self._u64(head, _GUID_AT[kind])
        if guid != self.begin.to_guid:
            raise DamagedError(
                f"the {_NAMES[kind]} record at byte {offset} of the stream leads to GUID {guid}, its BEGIN record to"
                f" {self.begin.to_guid}",
                hint="the stream is not what `zfs send` wrote; the backup was not called good, run it again",
            )
        if kind == _END:
            self._check_end(head)
            self._ended = True
        self.records += 1
        payload = _PAYLOAD.get(kind)
        return payload(self, head) if payload else 0

    def _check_end(self, head: bytes) -> None:
        """The END record has the checksum of all before it, and at its own end that of itself as well: one must follow from the other."""
        own = head[_CHECKSUM_AT:]
        if not any(own):
            return
        a, b, c, d = struct.unpack_from(self._order + "4Q", head, 8)
        for word in struct.unpack_from(f"{self._order}{_CHECKSUM_AT // 4}I", head, 0):
            a += word
            b += a
            c += b
            d += c
        if struct.unpack(self._order + "4Q", own) != tuple(value & 0xFFFFFFFFFFFFFFFF for value in (a, b, c, d)):
            raise DamagedError(
                "the checksums of the stream's END record do not fit each other",
                hint="the stream was altered on its way; run the backup again",
            )

    def _u32(self, head: bytes, at: int) -> int:
        return int(struct.unpack_from(self._order + "I", head, at)[0])

    def _u64(self, head: bytes, at: int) -> int:
        return int(struct.unpack_from(self._order + "Q", head, at)[0])

    def _object_payload(self, head: bytes) -> int:
        return self._u32(head, 36) or _round_up(self._u32(head, 28))

    def _write_payload(self, head: bytes) -> int:
        return self._u64(head, 96) if head[50] else self._u64(head, 32)

    def _spill_payload(self, head: bytes) -> int:
        return self._u64(head, 40) or self._u64(head, 16)

    def _embedded_payload(self, head: bytes) -> int:
        return _round_up(self._u32(head, 52))

    def finish(self) -> Begin:
        """Return what the stream said of itself, if its END record was the last thing in it. DamagedError if not."""
        if self.begin is None:
            parse_begin(bytes(self._partial))
        if self.begin is None or not self._ended or self._skip:
            raise DamagedError(
                "the stream stops before its END record",
                hint="`zfs send` died or was cut off; the backup was not called good, run it again",
            )
        return self.begin


_PAYLOAD: dict[int, Callable[[Walker, bytes], int]] = {
    _OBJECT: Walker._object_payload,
    _WRITE: Walker._write_payload,
    _SPILL: Walker._spill_payload,
    _EMBEDDED: Walker._embedded_payload,
}
