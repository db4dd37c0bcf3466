"""Functions that overwrite unused parts of InnoDB tablespace files: the doublewrite buffer and free pages.

The server must have been shut down cleanly. MySQL and MariaDB use the same format (fsp0fsp.h, fsp0types.h, trx0sys.h).
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base.errors import ConsistencyError, ServerError
from zsnapdb.base.safe_open import open_to_change, open_to_read
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.masking import FileState
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family
from zsnapdb.planning.sql_quoting import quoted

_EXTENT_BYTES = 1 << 20
_EXTENT_PAGES = 64
_SPACE_HEADER = 38
_FREE_LIMIT = _SPACE_HEADER + 12
_FLAGS = _SPACE_HEADER + 16
_FULL_CHECKSUM_FLAG = 0b10000
"""Flag of MariaDB's full_crc32 format. If it is set, the other flags do not indicate ROW_FORMAT=COMPRESSED."""
_ZIP_FLAGS = 0b01110
_FIRST_DESCRIPTOR = _SPACE_HEADER + 112
_BITMAP = 24
_DESCRIPTOR_STATES = range(1, 6)


_SYSTEM_PAGE = 5
"""Page number of the transaction system header (trx0sys.h, TRX_SYS_PAGE_NO)."""
_AT = -200
"""Offset of the page's doublewrite section from the page's end (trx0sys.h, TRX_SYS_DOUBLEWRITE)."""
_FIELDS = struct.Struct(">10xIII")
"""A segment header, a magic number, and the first pages of two blocks (trx0sys.h)."""
_MAGIC = 536853855


def doublewrite_pages(file: Path, page_size: int) -> tuple[range, ...]:
    """Return the page numbers of the doublewrite buffer in the first file of a system tablespace.

    The result is empty if the file has no doublewrite buffer. Each block of the buffer is one extent. For pages up to
    16 KiB, an extent has 1 MiB. For larger pages it has 64 pages: 2 MiB for pages of 32 KiB, and 4 MiB for pages of 64
    KiB (fsp0types.h).
    """
    with open_to_read(file) as opened:
        opened.seek((_SYSTEM_PAGE + 1) * page_size + _AT)
        read = opened.read(_FIELDS.size)
    if len(read) < _FIELDS.size:
        return ()
    magic, *blocks = _FIELDS.unpack(read)
    extent = max(_EXTENT_PAGES, _EXTENT_BYTES // page_size)
    return tuple(range(first, first + extent) for first in blocks) if magic == _MAGIC else ()


def empty_doublewrite(file: Path, page_size: int) -> bool:
    """Overwrite the doublewrite buffer in the first file of the system tablespace with zeros.

    After a clean shutdown, the buffer is not needed, and pages of zeros in the buffer are ignored
    (buf_dblwr_t::init_or_load_pages of MariaDB). If the buffer is outside the file, leave the file unchanged and return
    False. If the tablespace has no buffer, return True.
    """
    blocks = doublewrite_pages(file, page_size)
    if not blocks:
        return True
    with open_to_change(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        if any(block.start <= _SYSTEM_PAGE or block.stop * page_size > size for block in blocks):
            return False
        for block in blocks:
            opened.seek(block.start * page_size)
            opened.write(bytes(len(block) * page_size))
        opened.flush()
        os.fsync(opened.fileno())
    return True


def empty_free_pages(file: Path, page_size: int) -> bool:
    """Overwrite every free page of the tablespace with zeros. InnoDB initialises a free page before it uses it.

    If the file is not a tablespace with uncompressed pages of this size, leave it unchanged and return False.
    """
    with open_to_change(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        first = opened.read(page_size)
        if len(first) < page_size or size % page_size or struct.unpack_from(">I", first, 4)[0] != 0:
            return False
        (flags,) = struct.unpack_from(">I", first, _FLAGS)
        if flags & _ZIP_FLAGS and not flags & _FULL_CHECKSUM_FLAG:
            return False
        limit = min(struct.unpack_from(">I", first, _FREE_LIMIT)[0], size // page_size)
        pages = list(_free_pages(opened, page_size, limit))
        for page in pages:
            opened.seek(page * page_size)
            opened.write(bytes(page_size))
        opened.flush()
        os.fsync(opened.fileno())
    return True


def _free_pages(opened: BinaryIO, page_size: int, limit: int) -> Iterator[int]:
    """Yield the free pages below `limit`, according to the extent descriptors."""
    extent = _EXTENT_PAGES if page_size > 16384 else _EXTENT_BYTES // page_size
    length = _BITMAP + extent // 4
    for group in range(0, limit, page_size):
        opened.seek(group * page_size)
        descriptors = opened.read(page_size)
        for number in range(page_size // extent):
            start = _FIRST_DESCRIPTOR + number * length
            (state,) = struct.unpack_from(">I", descriptors, start + 20)
            if state not in _DESCRIPTOR_STATES:
                continue
            bits = int.from_bytes(descriptors[start + _BITMAP : start + length], "little")
            for at in range(extent):
                page = group + number * extent + at
                # The first two pages of a group contain descriptors and the bitmap of the change buffer.
                if page < limit and page - group > 1 and bits >> (2 * at) & 1:
                    yield page


_SYSTEM_FOLDERS = ("mysql", "sys", "performance_schema")


def states(datadir: Path) -> dict[str, FileState]:
    """Return the state of each file in the folders of user schemas. The keys are `folder/name`."""
    states_by_name = {}
    for folder in os.scandir(datadir):
        if not folder.is_dir(follow_symlinks=False) or folder.name in _SYSTEM_FOLDERS or folder.name[0] in ".#":
            continue
        for file in os.scandir(folder.path):
            status = file.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                states_by_name[f"{folder.name}/{file.name}"] = FileState(
                    status.st_size, status.st_mtime_ns, status.st_ino
                )
    return states_by_name


_ENCRYPTED = (
    "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
    " WHERE TABLE_TYPE = 'BASE TABLE' AND CREATE_OPTIONS LIKE '%ENCRYPTION=''Y''%' LIMIT 1"
)


def check(session: Session, facts: ServerFacts) -> None:
    """Raise ConsistencyError if the server has encrypted tables but lacks their key.

    One master key encrypts the keys of all tablespaces (refman 8.4, "InnoDB Data-at-Rest Encryption"), so it is enough
    to read one table. MySQL starts without its keyring, but cannot read encrypted tables. MariaDB does not start
    without its keys.
    """
    if not family(facts.flavour).starts_without_keys:
        return
    for schema, name in session.query(_ENCRYPTED):
        table = quoted(str(schema), str(name))
        try:
            session.query(f"SELECT 1 FROM {table} LIMIT 1")
        except ServerError as error:
            raise ConsistencyError(
                f"the started copy cannot read {table}, which is encrypted: {error.message}",
                hint="copy the keys of the source to this host, and name key files in server.sandbox_reads. Configure"
                " the keyring component (mysqld.my next to the server program) or plugin (server.options)",
            ) from error
