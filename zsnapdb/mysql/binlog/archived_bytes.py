"""Bytes of a binlog as they are archived, and the fingerprint that identifies a binlog."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from zsnapdb.base.errors import ConsistencyError
from zsnapdb.mysql.binlog.events import HEADER, MAGIC

_FLAGS_AT = len(MAGIC) + HEADER.size - 2
_IN_USE = 1


def read_plain(file: BinaryIO, start: int, end: int) -> bytearray:
    """Return bytes of a binlog for the archive: unchanged, except that the in-use flag is cleared.

    The server also clears this flag when it closes the file. Raise ConsistencyError if the file ends before `end`.
    """
    file.seek(start)
    data = bytearray(file.read(end - start))
    if len(data) < end - start:
        raise ConsistencyError(
            f"{file.name} became shorter while it was read",
            hint="check whether the binlog was cut by hand, or its dataset was rolled back",
        )
    if start <= _FLAGS_AT < end:
        data[_FLAGS_AT - start] &= ~_IN_USE
    return data


def fingerprint(file: BinaryIO, head_end: int) -> str:
    """Return the SHA-256 of the head of a binlog: its first `head_end` bytes.

    The head contains the server that started the file, the time, and the preceding GTIDs. It never changes.
    """
    return hashlib.sha256(read_plain(file, 0, head_end)).hexdigest()
