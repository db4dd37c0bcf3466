"""ZFS name-value lists in native encoding of little-endian hosts: numbers, bytes and nested lists.

Source: module/nvpair/nvpair.c of OpenZFS (nvs_native, nvpair_t). The payloads of BEGIN records and the resume tokens of
datasets are such lists.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

LITTLE_ENDIAN = b"\0\1"
"""First bytes of a list in the native encoding of a little-endian host."""
_HEADER, _PAIR = 12, struct.Struct("<iHxxii")
_NUMBER, _LIST, _BYTES = 8, 19, 26
_LIST_BYTES = 24
_END = bytes(4)

Value = int | bytes | Mapping[str, "Value"]


def read(data: bytes) -> Mapping[str, Value]:
    """Return the pairs of a list. Pairs of other types than numbers, bytes and lists are left out.

    ValueError or struct.error if the bytes are not such a list.
    """
    if data[:2] != LITTLE_ENDIAN:
        raise ValueError("the list is not in the native form of a little-endian host")
    return _pairs(data, _HEADER, nested=True)[0]


def with_numbers(data: bytes, numbers: Mapping[str, int]) -> bytes:
    """Return the list with unsigned 64-bit numbers appended. `data` is empty for a new list.

    ValueError if `data` is not a list in the native encoding of a little-endian host.
    """
    before = data or LITTLE_ENDIAN + bytes(6) + b"\1" + bytes(3) + _END
    if before[:2] != LITTLE_ENDIAN or before[-4:] != _END:
        raise ValueError("the list is not in the native form of a little-endian host")
    pairs = []
    for name, number in numbers.items():
        text = name.encode() + b"\0"
        begin = (_PAIR.size + len(text) + 7) // 8 * 8
        head = _PAIR.pack(begin + 8, len(text), 1, _NUMBER) + text
        pairs.append(head.ljust(begin, b"\0") + struct.pack("<Q", number))
    return before[:-4] + b"".join(pairs) + _END


def _pairs(data: bytes, at: int, *, nested: bool) -> tuple[dict[str, Value], int]:
    """Return the pairs of a list, and the offset after it."""
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
