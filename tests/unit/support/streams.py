"""Send streams in the layout of OpenZFS: complete records of every type, in both byte orders."""

from __future__ import annotations

import random
import struct

RECORD_BYTES = 312
GUID = 0x1234567890ABCDEF
NAME = "tank/mysql/data@zsnapdb-20261120T101112Z-7f3a"
NAME_AT = 56
GUID_AT = {1: 40, 2: 24, 3: 40, 4: 32, 5: 40, 6: 32, 7: 24, 8: 32, 9: 24, 10: 32}


def begin(
    order: str = "<",
    guid: int = GUID,
    base: int = 7,
    payload: bytes = b"",
    version: int = 0x4 << 2 | 1,
    name: str = NAME,
    kind: int = 2,
    flags: int = 0,
) -> bytes:
    fields = struct.pack(order + "IIQQQIIQQ", 0, len(payload), 0x2F5BACBAC, version, 0, kind, flags, guid, base)
    return (fields + name.encode()).ljust(RECORD_BYTES, b"\0") + payload


def renamed(stream: bytes, name: str) -> bytes:
    """Return the stream with this snapshot name in its BEGIN record."""
    return stream[:NAME_AT] + name.encode().ljust(RECORD_BYTES - NAME_AT, b"\0") + stream[RECORD_BYTES:]


def record(kind: int, payload: bytes = b"", order: str = "<", guid: int = GUID, **sizes: tuple[str, int, int]) -> bytes:
    """Return a record of any type except BEGIN and END. `sizes` are fields as (format, offset, value)."""
    head = bytearray(RECORD_BYTES)
    struct.pack_into(order + "I", head, 0, kind)
    struct.pack_into(order + "Q", head, GUID_AT.get(kind, 40), guid)
    for form, at, value in sizes.values():
        struct.pack_into(order + form, head, at, value)
    head[280:] = random.Random(kind).randbytes(32)
    return bytes(head) + payload


def write(payload: bytes, order: str = "<", guid: int = GUID) -> bytes:
    return record(3, payload, order, guid, logical=("Q", 32, len(payload)))


def compressed_write(payload: bytes, order: str = "<") -> bytes:
    return record(
        3, payload, order, logical=("Q", 32, 131072), compression=("B", 50, 15), compressed=("Q", 96, len(payload))
    )


def end(order: str = "<", guid: int = GUID) -> bytes:
    head = struct.pack(order + "IIQQQQQ", 5, 0, 1, 2, 3, 4, guid).ljust(280, b"\0")
    a, b, c, d = 1, 2, 3, 4
    for word in struct.unpack(order + "70I", head):
        a, b, c, d = a + word, b + a + word, c + b + a + word, d + c + b + a + word
    return head + struct.pack(order + "4Q", *(value % (1 << 64) for value in (a, b, c, d)))


def stream_of(size: int, seed: int = 0) -> bytes:
    """Return a stream of one WRITE with `size` random bytes. The stream has three records more than these bytes."""
    return begin() + write(random.Random(seed).randbytes(size)) + end()
