"""The tail of a binlog that an earlier walk found. A later walk of the same file may begin there.

A binlog only grows while it is the newest one. So the events before a known tail need not be read again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.base.gtid import Gtids
from zsnapdb.mysql.binlog.bytes import read_plain

_COMPARED = 4096


@dataclass(frozen=True)
class KnownTail:
    """The end of the last complete transaction of a binlog, as an offset, and the GTIDs up to it.

    `file` is the base name of the binlog. `last_gtid` is as in `binlog.Tail`. `digest` is that of `digest_of`.
    """

    file: str
    offset: int
    gtids: Gtids
    last_gtid: str | None
    digest: str

    def is_of(self, file: BinaryIO, size: int) -> bool:
        """Whether the open binlog of `size` bytes is the one that has this tail, or the same with more behind it."""
        return self.offset <= size and digest_of(file, self.offset) == self.digest


def digest_of(file: BinaryIO, offset: int) -> str:
    """Return the SHA-256 of the first 4 KiB of a binlog and of the 4 KiB before the offset.

    The first say which server began the file, when, and after which GTIDs. The others hold the time and the GTID of
    the last transaction before the offset. ConsistencyError if the file ends before the offset.
    """
    first = read_plain(file, 0, min(_COMPARED, offset))
    last = read_plain(file, max(0, offset - _COMPARED), offset)
    return hashlib.sha256(first + last).hexdigest()
