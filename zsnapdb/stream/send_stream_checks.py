"""Checks of the records of a ZFS send stream while it is read.

The checks read headers, skip payloads, and copy no bytes.

Layout: `struct dmu_replay_record` in OpenZFS include/sys/zfs_ioctl.h (the same from 2.0 to 2.4). A record has 312 bytes
in the byte order of the sending host and starts with its type (u32). The type determines the length of the payload
after the record (`record_payload_size` in cmd/zstream). Every record except BEGIN ends with the fletcher-4 checksum of
all earlier bytes, and contains the GUID of the snapshot that the stream creates.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

from zsnapdb.base.errors import DamagedError

_RAW = 24
MOST_KEY_BYTES = 1 << 16
"""Maximum payload size in bytes of a raw BEGIN record.

The payload contains the dataset's wrapped keys, which have a few hundred bytes.
"""
_FOREIGN_FEATURES = {
    0: "deduplicated blocks (-D)",
    1: "deduplicated blocks (-D)",
    16: "embedded blocks (-e)",
    20: "a resumed send (-t)",
    21: "redaction (--redact)",
    _RAW: "raw encrypted blocks (-w)",
    26: "holds (-h)",
}
"""Feature bits that never occur in streams of zsnapdb, with their meaning."""

_CLONE = 1
"""DRR_FLAG_CLONE: the stream creates a clone of another dataset's snapshot."""

_NOT_OURS = "zsnapdb never sends such a stream: somebody else made it, or it was altered"


class DatasetKind(IntEnum):
    """The dataset type of a stream: `drr_type` of its BEGIN record (dmu_objset_type_t in include/sys/dmu.h)."""

    FILESYSTEM = 2
    ZVOL = 3


@dataclass(frozen=True)
class BeginRecord:
    """The first record of a stream. `from_guid` is 0 for a full stream.

    `name` is the full name of the snapshot. `kind` is a value of `DatasetKind` in a valid stream. `payload_size` is in
    bytes.
    """

    features: int
    to_guid: int
    from_guid: int
    name: str
    kind: int
    flags: int = 0
    payload_size: int = 0

    def check_ours(self, *, is_raw: bool) -> None:
        """Raise DamagedError if zsnapdb's `zfs send` never creates such a stream.

        `is_raw`: whether the stream was sent with -w.
        """
        if is_raw and (not self.features >> _RAW & 1 or not 0 < self.payload_size <= MOST_KEY_BYTES):
            raise DamagedError(
                f"the stream has the features {self.features:#x} and {self.payload_size} bytes of keys: it is not the"
                " raw stream of an encrypted dataset",
                hint=_NOT_OURS,
            )
        if self.payload_size and not is_raw:
            raise DamagedError(
                f"the BEGIN record of the stream has a payload of {self.payload_size} bytes, such as properties",
                hint=_NOT_OURS,
            )
        foreign = [
            text
            for bit, text in _FOREIGN_FEATURES.items()
            if self.features >> bit & 1 and (bit, is_raw) != (_RAW, True)
        ]
        if foreign:
            raise DamagedError(f"the stream has a feature that is not accepted: {foreign[0]}", hint=_NOT_OURS)
        if self.flags & _CLONE:
            raise DamagedError("the stream is of a clone of another dataset", hint=_NOT_OURS)


@dataclass(frozen=True)
class ExpectedStream:
    """The required content of a stream's BEGIN record. `from_guid` is 0 for a full stream.

    `name` is the full name of the snapshot. `features` is None if the stream was not sent yet. `is_raw`: whether the
    stream's blocks are encrypted as in the pool.
    """

    name: str
    kind: DatasetKind
    to_guid: int
    from_guid: int
    features: int | None = None
    is_raw: bool = False

    def check(self, begin: BeginRecord) -> None:
        """Raise DamagedError unless the GUIDs, the snapshot name, the type and the features are as expected."""
        if (begin.to_guid, begin.from_guid) != (self.to_guid, self.from_guid):
            raise DamagedError(
                f"the stream leads from GUID {begin.from_guid} to {begin.to_guid}, expected from {self.from_guid} to"
                f" {self.to_guid}",
                hint="the snapshot was replaced during the backup, or chunks were exchanged",
            )
        if begin.name != self.name:
            raise DamagedError(
                f"the stream is of snapshot {begin.name!r}, expected {self.name}",
                hint="the snapshot was renamed during the backup, or chunks were exchanged",
            )
        if begin.kind != self.kind:
            raise DamagedError(
                f"the stream is of a dataset of type {begin.kind}, expected {self.kind} ({self.kind.name.lower()})",
                hint=_NOT_OURS,
            )
        if self.features is not None and begin.features != self.features:
            raise DamagedError(
                f"the stream has the features {begin.features:#x}, expected {self.features:#x}", hint=_NOT_OURS
            )


RECORD_BYTES = 312
_MAGIC = 0x2F5BACBAC
_SUBSTREAM = 1
"""The header type (bits 0-1 of the version info) of a single-snapshot stream.

Type 2 is a package of several streams (`zfs send -R`).
"""

BEGIN, OBJECT, FREEOBJECTS, WRITE, FREE, END, SPILL, EMBEDDED, OBJECT_RANGE = 0, 1, 2, 3, 4, 5, 7, 8, 9
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
GUID_AT = (40, 40, 24, 40, 32, 40, 32, 24, 32, 24, 32)
"""The offset of the snapshot's GUID in a record, by type."""

CHECKSUM_AT = 280
_NAME_AT = 56


class Senders(Enum):
    """The accepted senders: only zsnapdb's `zfs send`, or any `zfs send` of one snapshot."""

    OURS = "ours"
    ANY = "any"


_OUR_RECORDS = frozenset({OBJECT, FREEOBJECTS, WRITE, FREE, END, SPILL})
"""The types of records after BEGIN that `zfs send` with zsnapdb's flags creates (dmu_send.c).

`planning.backup.send_form.SEND_FLAGS` lists the flags. A raw stream also contains OBJECT_RANGE records.
"""


def _order(first: bytes) -> str | None:
    for order in "<>":
        if struct.unpack_from(order + "Q", first, 8)[0] == _MAGIC:
            return order
    return None


def parse_begin(first: bytes | memoryview) -> BeginRecord:
    """Return the BEGIN record at the start of a stream. Raises DamagedError if the stream does not start with one."""
    head = bytes(first[:RECORD_BYTES])
    order = _order(head) if len(head) == RECORD_BYTES else None
    if order is None or struct.unpack_from(order + "I", head, 0)[0] != BEGIN:
        raise DamagedError(
            "the stream does not start with a BEGIN record",
            hint="`zfs send` wrote no send stream; see the messages of `zfs send`",
        )
    _, version, _, kind, flags, to_guid, from_guid = struct.unpack_from(order + "QQQIIQQ", head, 8)
    if version & 3 != _SUBSTREAM:
        raise DamagedError(
            "the stream is not the stream of one snapshot: it is a package (`zfs send -R` or `-p`)",
            hint="`zfs send` was run with unexpected options, or the stream was exchanged",
        )
    return BeginRecord(
        features=(version >> 2) & 0x3FFFFFFF,
        to_guid=to_guid,
        from_guid=from_guid,
        name=head[_NAME_AT:].partition(b"\0")[0].decode(errors="replace"),
        kind=kind,
        flags=flags,
        payload_size=struct.unpack_from(order + "I", head, 4)[0],
    )


def payload_size(head: bytes, order: str) -> int:
    """Return the payload size in bytes of a record other than BEGIN, from its 312-byte header.

    `order` is the byte order, "<" or ">".
    """
    kind = struct.unpack_from(order + "I", head, 0)[0]
    if kind == OBJECT:
        bonus, _, raw_bonus = struct.unpack_from(order + "III", head, 28)
        return int(raw_bonus or _round_up(bonus))
    if kind == WRITE:
        at = 96 if head[50] else 32
    elif kind == SPILL:
        at = 40 if struct.unpack_from(order + "Q", head, 40)[0] else 16
    elif kind == EMBEDDED:
        return _round_up(int(struct.unpack_from(order + "I", head, 52)[0]))
    else:
        return 0
    return int(struct.unpack_from(order + "Q", head, at)[0])


def _round_up(size: int) -> int:
    return (size + 7) & ~7


class Walker:
    """A check that follows a stream from its first byte to its END record, slice by slice.

    `begin` is None until the first record is complete.
    """

    def __init__(self, expected: ExpectedStream | None = None, senders: Senders = Senders.OURS) -> None:
        """`expected`: the required content of the BEGIN record (None: any content)."""
        self._expected, self._senders = expected, senders
        self._is_raw = expected is not None and expected.is_raw
        self._accepts = _OUR_RECORDS | {OBJECT_RANGE} if self._is_raw else _OUR_RECORDS
        self.begin: BeginRecord | None = None
        self.records = 0
        self._ended = False
        self._order = "<"
        self._write = struct.Struct("<")
        self._partial = bytearray()
        self._skip = 0
        self._done = 0

    def feed(self, data: memoryview) -> None:
        """Check the next bytes of the stream.

        Raises DamagedError with the first invalid record and its offset.
        """
        size = len(data)
        at = self._skip
        if self._partial:
            missing = RECORD_BYTES - len(self._partial)
            self._partial += data[:missing]
            if len(self._partial) < RECORD_BYTES:
                self._done += size
                return
            at = missing + self._header(memoryview(self._partial), 0, self._done + missing - RECORD_BYTES)
            self._partial = bytearray()
        if self.begin is None and size - at >= RECORD_BYTES:
            at += RECORD_BYTES + self._header(data, at, self._done + at)
        at = self._walk(data, at, size)
        if at < size:
            if self._ended:
                raise DamagedError(
                    f"the stream continues after its END record, at byte {self._done + at}",
                    hint="`zfs send` was run with unexpected options",
                )
            self._partial += data[at:]
            at = size
        self._skip = at - size
        self._done += size

    def _walk(self, data: memoryview, at: int, size: int) -> int:
        """Check all complete headers from `at` on. Return the offset of the next header.

        Nearly all records are WRITE records, so this function checks them itself, which is faster.
        """
        unpack, guid, records = self._write.unpack_from, self.begin.to_guid if self.begin else 0, 0
        last = size - RECORD_BYTES
        while at <= last and not self._ended:
            kind, logical, to_guid, compression, compressed = unpack(data, at)
            if kind == WRITE and to_guid == guid:
                records += 1
                at += RECORD_BYTES + (compressed if compression else logical)
            else:
                at += RECORD_BYTES + self._header(data, at, self._done + at)
        self.records += records
        return at

    def _header(self, data: memoryview, at: int, offset: int) -> int:
        """Check one record of any type, `offset` bytes into the stream. Return the size of its payload in bytes."""
        with data[at : at + RECORD_BYTES] as view:
            head = bytes(view)
        if self.begin is None:
            self.begin = self._accepted(parse_begin(head))
            self._order = _order(head) or "<"
            # type, logical size, GUID, compression, compressed size of a WRITE
            self._write = struct.Struct(self._order + "I28xQQ2xB45xQ")
            self.records += 1
            return self.begin.payload_size
        kind = self._u32(head, 0)
        if kind >= len(_NAMES):
            raise DamagedError(
                f"the record at byte {offset} of the stream has the unknown type {kind}",
                hint="check whether OpenZFS is newer than this zsnapdb supports",
            )
        if kind == BEGIN:
            raise DamagedError(
                f"the stream has a second BEGIN record at byte {offset}",
                hint="`zfs send` was run with unexpected options",
            )
        if self._senders is Senders.OURS and kind not in self._accepts:
            raise DamagedError(
                f"the stream has a record of type {_NAMES[kind]} at byte {offset}, which is not accepted",
                hint="zsnapdb never sends such a record: `zfs send` had unexpected options, or the stream was altered",
            )
        guid = self._u64(head, GUID_AT[kind])
        if guid != self.begin.to_guid:
            raise DamagedError(
                f"the {_NAMES[kind]} record at byte {offset} of the stream has GUID {guid}, the BEGIN record has"
                f" {self.begin.to_guid}",
                hint="the stream was altered after `zfs send` wrote it; the backup was not completed; run it again",
            )
        if kind == END:
            self._check_end(head)
            self._ended = True
        self.records += 1
        return payload_size(head, self._order)

    def _accepted(self, begin: BeginRecord) -> BeginRecord:
        if self._senders is Senders.OURS:
            begin.check_ours(is_raw=self._is_raw)
        if self._expected is not None:
            self._expected.check(begin)
        return begin

    def _check_end(self, head: bytes) -> None:
        """Raise DamagedError unless the two checksums of the END record match.

        The first checksum covers all bytes before the record, and the second also covers the record itself. So the
        second checksum can be computed from the first.
        """
        own = head[CHECKSUM_AT:]
        if not any(own):
            return
        a, b, c, d = struct.unpack_from(self._order + "4Q", head, 8)
        for word in struct.unpack_from(f"{self._order}{CHECKSUM_AT // 4}I", head, 0):
            a += word
            b += a
            c += b
            d += c
        if struct.unpack(self._order + "4Q", own) != tuple(value & 0xFFFFFFFFFFFFFFFF for value in (a, b, c, d)):
            raise DamagedError(
                "the checksums in the stream's END record do not match each other",
                hint="the stream was altered in transfer; run the backup again",
            )

    def _u32(self, head: bytes, at: int) -> int:
        return int(struct.unpack_from(self._order + "I", head, at)[0])

    def _u64(self, head: bytes, at: int) -> int:
        return int(struct.unpack_from(self._order + "Q", head, at)[0])

    def finish(self) -> BeginRecord:
        """Return the stream's BEGIN record. Raises DamagedError unless the stream ended with its END record."""
        if self.begin is None:
            parse_begin(bytes(self._partial))
        if self.begin is None or not self._ended or self._skip:
            raise DamagedError(
                "the stream stops before its END record",
                hint="`zfs send` died or was cut off; the backup was not completed; run it again",
            )
        return self.begin
