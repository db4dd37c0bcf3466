"""The first and the last record of a ZFS send stream.

Layout: `struct dmu_replay_record` in OpenZFS include/sys/zfs_ioctl.h (2.1-2.3), 312 bytes, in the byte order of
the sending host: type (u32), payload length (u32), then for BEGIN: magic, version info (bits 2-31: feature flags),
creation time (u64 each), objset type, flags (u32 each), to-GUID, from-GUID (u64 each), name; for END: four u64 of
fletcher-4 and the to-GUID.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from zsnapdb.errors import DamagedError

RECORD_BYTES = 312
_BEGIN = 0
_END = 5
_MAGIC = 0x2F5BACBAC


@dataclass(frozen=True)
class Begin:
    """What a stream says of itself in its first record. `from_guid` is 0 for a full stream."""

    features: int
    to_guid: int
    from_guid: int


def _orders(first: bytes | memoryview) -> str | None:
    for order in "<>":
        if struct.unpack_from(order + "Q", first, 8)[0] == _MAGIC:
            return order
    return None


def parse_begin(first: bytes | memoryview) -> Begin:
    """Return the BEGIN record at the start of a stream. DamagedError if there is none."""
    order = _orders(first) if len(first) >= RECORD_BYTES else None
    if order is None or struct.unpack_from(order + "I", first, 0)[0] != _BEGIN:
        raise DamagedError("the stream does not start with a BEGIN record", hint="`zfs send` wrote something else; see its messages")
    _, version, _, _, _, to_guid, from_guid = struct.unpack_from(order + "QQQIIQQ", first, 8)
    return Begin(features=(version >> 2) & 0x3FFFFFFF, to_guid=to_guid, from_guid=from_guid)


def check_end(last: bytes | memoryview, first: bytes | memoryview) -> None:
    """Raise DamagedError unless `last`, the stream's last 312 bytes, is the END record of the stream that `first` begins."""
    order = _orders(first)
    if order is not None and len(last) == RECORD_BYTES:
        kind, _ = struct.unpack_from(order + "II", last, 0)
        to_guid = struct.unpack_from(order + "Q", last, 40)[0]
        if kind == _END and to_guid == parse_begin(first).to_guid:
            return
    raise DamagedError("the stream stops before its END record", hint="`zfs send` died or was cut off; the backup was not called good, run it again")
