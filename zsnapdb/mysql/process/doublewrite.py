"""The doublewrite buffer inside a system tablespace: pages that are copies of other pages, and may be torn.

MariaDB has it there, and MySQL before 8.0.20 (refman 8.0, "Doublewrite Buffer"). The server reads it in a recovery,
and writes it before pages that it flushes. A snapshot may hold half of such a write; recovery then finds the pages
themselves whole. So a wrong checksum there is no damage.
"""

from __future__ import annotations

import struct
from pathlib import Path

from zsnapdb.base.server_files import open_to_read

_SYSTEM_PAGE = 5
"""The page of the transaction system (trx0sys.h, TRX_SYS_PAGE_NO)."""
_AT = -200
"""Where its part about the doublewrite buffer begins, from the page's end (trx0sys.h, TRX_SYS_DOUBLEWRITE)."""
_FIELDS = struct.Struct(">10xIII")
"""A segment header, a magic number, the first pages of two blocks (trx0sys.h)."""
_MAGIC = 536853855


def doublewrite_pages(file: Path, page_size: int) -> tuple[range, ...]:
    """Return the pages of the buffer in the first file of a system tablespace; none if the buffer is not there.

    A block is an extent: 1 MiB for pages up to 16 KiB, else 64 pages (fsp0types.h; 32 KiB: 2 MiB, 64 KiB: 4 MiB).
    """
    with open_to_read(file) as opened:
        opened.seek((_SYSTEM_PAGE + 1) * page_size + _AT)
        read = opened.read(_FIELDS.size)
    if len(read) < _FIELDS.size:
        return ()
    magic, *blocks = _FIELDS.unpack(read)
    extent = max(64, (1 << 20) // page_size)
    return tuple(range(first, first + extent) for first in blocks) if magic == _MAGIC else ()
