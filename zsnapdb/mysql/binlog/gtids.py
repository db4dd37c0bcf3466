"""Decodes the GTID events of both families.

Sources: libs/mysql/binlog/event/control_events.cpp and libs/mysql/serialization of MySQL 9.x; MariaDB manual
"GTID_EVENT", "GTID_LIST_EVENT".
"""

from __future__ import annotations

import struct
import uuid

from zsnapdb.base.gtid import GtidSet

_COMMITTED_AT = 42
_HAS_ORIGINAL = 1 << 55


def previous_gtids(body: memoryview) -> GtidSet:
    """Decode a Previous-GTIDs event: Gtid_set::encode of MySQL 8.3+, where byte 7 marks the form with tags."""
    word = struct.unpack_from("<Q", body, 0)[0]
    tagged = word >> 56 == 1
    count = (word >> 8) & 0xFFFFFFFFFFFF if tagged else word & 0x00FFFFFFFFFFFFFF
    at, pairs = 8, []
    for _ in range(count):
        source = str(uuid.UUID(bytes=bytes(body[at : at + 16])))
        at += 16
        if tagged:
            length, at = _varlen(body, at)
            if length:
                source += ":" + bytes(body[at : at + length]).decode()
            at += length
        intervals = struct.unpack_from("<Q", body, at)[0]
        at += 8
        for _ in range(intervals):
            first, after = struct.unpack_from("<qq", body, at)
            at += 16
            pairs.append((source, (first, after - 1)))
    return GtidSet.of(pairs)


def _varlen(body: memoryview, at: int) -> tuple[int, int]:
    """Decode an unsigned integer of mysql::serialization; return the integer and the offset after it.

    The number of low set bits in the first byte is the number of extra bytes.
    """
    first = body[at]
    extra = 0
    while extra < 8 and first >> extra & 1:
        extra += 1
    raw = int.from_bytes(body[at : at + extra + 1], "little")
    return raw >> (extra + 1 if extra < 8 else 8), at + extra + 1


def tagged_gtid(body: memoryview) -> tuple[str, int, int]:
    """Decode source, number and commit time (microseconds UTC; 0 if it has none) of a tagged GTID event of MySQL 8.3+.

    The form of mysql::serialization is: version, size, then id-value pairs.
    Field 1 is the UUID as 16 variable-length integers, 2 the number (signed), 3 the tag, 6 the immediate commit
    timestamp; 0, 4 and 5 are single integers.
    """
    _, at = _varlen(body, 0)
    _, at = _varlen(body, at)
    _, at = _varlen(body, at)
    source, number, tag, committed = "", 0, "", 0
    while at < len(body):
        field_id, at = _varlen(body, at)
        if field_id in (0, 4, 5):
            _, at = _varlen(body, at)
        elif field_id == 1:
            octets = bytearray()
            for _ in range(16):
                octet, at = _varlen(body, at)
                octets.append(octet)
            source = str(uuid.UUID(bytes=bytes(octets)))
        elif field_id == 2:
            raw, at = _varlen(body, at)
            # Signed integers are stored as (magnitude << 1) | sign.
            number = raw >> 1
        elif field_id == 3:
            length, at = _varlen(body, at)
            tag = bytes(body[at : at + length]).decode()
            at += length
        elif field_id == 6:
            committed, at = _varlen(body, at)
            break
        else:
            break
    return (f"{source}:{tag}" if tag else source), number, committed


def committed_at(body: memoryview) -> int:
    """Return the immediate commit timestamp of a GTID or anonymous GTID event of MySQL, microseconds UTC.

    0 if the event has none (before 8.0.1). The timestamp is the time at which this server wrote the transaction to its
    binlog: 7 bytes after the logical clock. The highest bit says whether the timestamp of the original server follows
    (Gtid_log_event::write_body_to_memory).
    """
    if len(body) < _COMMITTED_AT + 7:
        return 0
    return int.from_bytes(body[_COMMITTED_AT : _COMMITTED_AT + 7], "little") & ~_HAS_ORIGINAL
