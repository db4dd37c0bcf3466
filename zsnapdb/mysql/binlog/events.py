"""Functions that read a binlog file event by event in constant memory. They check every event.

Format: MySQL internals "Binary Log Event" and libs/mysql/binlog/event of MySQL 9.x; MariaDB manual "Binlog Event
Header". A header has 19 bytes: time (u32, seconds), type (u8), server id (u32), event size (u32), next position (u32,
wraps at 4 GiB; MariaDB 11 writes 0 inside transactions), flags (u16); all little-endian. Unknown types are skipped by
their size.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from zsnapdb.base.errors import ConsistencyError, DamagedError, PreflightError

MAGIC = b"\xfebin"
ENCRYPTED_MAGIC = b"\xfdbin"
HEADER = struct.Struct("<IBIIIH")

QUERY, FORMAT, XID, TABLE_MAP = 2, 15, 16, 19
INCIDENT, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, XA_PREPARE, PAYLOAD, TAGGED_GTID = 26, 33, 34, 35, 38, 40, 42
MARIADB_GTID, MARIADB_GTID_LIST, MARIADB_ENCRYPTION = 162, 163, 164
START_ENCRYPTION = struct.Struct("<BI12s")
"""Scheme, key version and nonce in the body of the event (MariaDB, sql/log_event.h, Start_encryption_log_event)."""
IGNORABLE = 0x80
"""The flag of an event that readers skip (log_event.h, LOG_EVENT_IGNORABLE_F)."""
MARIADB_QUERY_COMPRESSED = 165
_IN_USE = 1
_CRC_BYTES = 4
_WINDOW = 1 << 20
_FIRST_WINDOW = 1 << 14
"""Number of bytes per read of a file's head. A head is rarely as long as _WINDOW."""
_RESIDUE = 0x2144DF1C
"""The result of CRC-32 for any data that is followed by its own little-endian CRC-32."""

_DECISIVE = frozenset(
    {
        QUERY,
        FORMAT,
        XID,
        INCIDENT,
        GTID,
        ANONYMOUS_GTID,
        PREVIOUS_GTIDS,
        XA_PREPARE,
        PAYLOAD,
        TAGGED_GTID,
        MARIADB_GTID,
        MARIADB_GTID_LIST,
        MARIADB_QUERY_COMPRESSED,
    }
)
"""Event types that start or end a transaction, or list the GTIDs of earlier files.

Most events have other types, especially rows and table maps.
"""

_WHOLE = frozenset({FORMAT, PREVIOUS_GTIDS, MARIADB_GTID_LIST})
"""Event types whose complete body is read, even if the body is long."""


MALFORMED = (struct.error, IndexError, ValueError)
"""Exceptions that are raised when a malformed event is decoded."""


class Event(NamedTuple):
    """One event: its time (UTC seconds), its start and end in the file (bytes), and its body.

    The body has no header and no checksum. If an event is longer than the window, its body is truncated to the window,
    except for _WHOLE types.
    """

    kind: int
    when: int
    server_id: int
    start: int
    end: int
    body: memoryview


@dataclass(frozen=True)
class StartEncryption:
    """The start and end of a binlog's start-encryption event, and the nonce of the file."""

    start: int
    end: int
    nonce: bytes

    @classmethod
    def of(cls, file: BinaryIO) -> StartEncryption | None:
        """Return the start-encryption event of an open binlog, which is its second event.

        The result is None if the binlog's events are not encrypted.
        """
        file.seek(0)
        first = file.read(len(MAGIC) + HEADER.size)
        if len(first) < len(MAGIC) + HEADER.size or first[: len(MAGIC)] != MAGIC:
            return None
        _, kind, _, length, _, _ = HEADER.unpack_from(first, len(MAGIC))
        at = len(MAGIC) + length
        file.seek(at)
        event = file.read(HEADER.size + START_ENCRYPTION.size)
        if kind != FORMAT or len(event) < HEADER.size + START_ENCRYPTION.size or event[4] != MARIADB_ENCRYPTION:
            return None
        if HEADER.unpack_from(event)[5] & IGNORABLE:
            # A server that sends a binlog decrypts its events, but also sends this event.
            return None
        _, _, nonce = START_ENCRYPTION.unpack_from(event, HEADER.size)
        return cls(at, at + HEADER.unpack_from(event)[3], nonce)


def check_magic(file: BinaryIO, name: str, size: int) -> bool:
    """Return whether the file already has the header of a binlog. A server may have just created the file.

    Raises PreflightError if the binlog is encrypted, and DamagedError if the file is not a binlog.
    """
    file.seek(0)
    magic = file.read(len(MAGIC))
    if size < len(MAGIC) and MAGIC.startswith(magic):
        return False
    if magic == ENCRYPTED_MAGIC:
        raise PreflightError(
            f"binlog {name} is encrypted",
            hint="set binlog_encryption=OFF; encrypted binlogs cannot be read from their files",
        )
    if magic != MAGIC:
        raise DamagedError(f"{name} is not a binlog: it starts with {magic!r}")
    return True


def decisive_events(
    file: BinaryIO, name: str, size: int, start: int | None = None, others: Collection[int] = ()
) -> Generator[Event, None, int]:
    """Yield a file's decisive events and its events of the types `others`. Return the offset where reading ended.

    If the last event is truncated or has a wrong checksum, reading ends before this event. With `start` (the start of
    an event), the first yielded event is the format description, and the second event is at `start`. Every event is
    checked. The file is read through a window of constant size. Raises DamagedError if an event before the last event
    is damaged, and PreflightError if the file is encrypted.
    """
    if not check_magic(file, name, size):
        return 0
    at = base = len(MAGIC)
    yielded = _DECISIVE.union(others)
    window = memoryview(b"")
    has_checksum = False
    while at + HEADER.size <= size:
        place = at - base
        if place + HEADER.size > len(window):
            window, base, place = _window(file, at, size, _FIRST_WINDOW if at == len(MAGIC) else _WINDOW), at, 0
        when, kind, server_id, length, following, flags = HEADER.unpack_from(window, place)
        end = at + length
        if length < HEADER.size or end > size:
            _check_cut(name, at, window[place : place + HEADER.size])
            return at
        if place + length > len(window):
            window, base, place = _window(file, at, size, max(_WINDOW, length if kind in _WHOLE else 0)), at, 0
        if kind == FORMAT:
            has_checksum = window[place + length - 5] == 1
        elif at == len(MAGIC):
            raise _damaged(name, at, "is not a format description")
        # A format description has a checksum even if no other event of the file has one (log_event.cc,
        # Format_description_log_event::write).
        if kind == FORMAT:
            right = _format_is_right(window[place : place + length], flags)
        elif not has_checksum:
            right = True
        elif place + length <= len(window):
            right = zlib.crc32(window[place : place + length]) == _RESIDUE
        else:
            right = _long_is_right(file, at, length)
        if not right:
            if end == size and following in (0, end & 0xFFFFFFFF):
                return at
            raise _damaged(name, at, "has a wrong checksum")
        if kind == MARIADB_ENCRYPTION and not flags & IGNORABLE:
            raise PreflightError(
                f"binlog {name} is encrypted",
                hint="set encrypt_binlog=OFF; encrypted binlogs cannot be read from their files",
            )
        if kind in yielded:
            checksum = _CRC_BYTES if has_checksum or kind == FORMAT else 0
            body = window[place + HEADER.size : place + length - checksum]
            yield Event(kind, when, server_id, at, end, body)
        at = end if start is None or at != len(MAGIC) else max(end, start)
    return at


def _check_cut(name: str, at: int, header: memoryview) -> None:
    """Raise DamagedError if the size of a truncated event does not match the end position in its header."""
    _, _, _, length, following, _ = HEADER.unpack(header)
    if following not in (0, (at + length) & 0xFFFFFFFF) or (length < HEADER.size and any(header)):
        raise _damaged(name, at, "has a wrong size")


def _window(file: BinaryIO, at: int, size: int, most: int) -> memoryview:
    """Return at most `most` bytes from `at`, without bytes after `size`."""
    file.seek(at)
    return memoryview(file.read(min(most, size - at)))


def _format_is_right(event: memoryview, flags: int) -> bool:
    """Return whether a format description has the correct checksum.

    The server sets the in-use flag after it has computed the checksum (log_event.h, LOG_EVENT_BINLOG_IN_USE_F).
    """
    head = HEADER.pack(*HEADER.unpack_from(event)[:5], flags & ~_IN_USE)
    return zlib.crc32(event[HEADER.size :], zlib.crc32(head)) == _RESIDUE


def _long_is_right(file: BinaryIO, at: int, length: int) -> bool:
    """Return whether an event that is longer than the window has the correct checksum. Read one window at a time."""
    file.seek(at)
    checksum = 0
    while length > 0:
        data = file.read(min(_WINDOW, length))
        if not data:
            return False
        checksum = zlib.crc32(data, checksum)
        length -= len(data)
    return checksum == _RESIDUE


def _damaged(name: str, at: int, what: str) -> DamagedError:
    return DamagedError(
        f"binlog {name}: the event at {at} {what}", hint="see the server's error log and `zpool status`"
    )


def malformed(name: str, error: Exception, at: int | None = None) -> DamagedError:
    """Return the error for an event that could not be decoded. If the event's offset is known, it is `at`."""
    event = "an event" if at is None else f"the event at {at}"
    return DamagedError(
        f"binlog {name}: {event} is malformed: {error}", hint="see the server's error log and `zpool status`"
    )


_FLAGS_AT = len(MAGIC) + HEADER.size - 2


def read_plain(file: BinaryIO, start: int, end: int) -> bytearray:
    """Return the bytes of a binlog for the archive. The only change is that the in-use flag is cleared.

    The server also clears this flag when it closes the file. Raises ConsistencyError if the file ends before `end`.
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
    """Return the fingerprint of a binlog, which is the SHA-256 of its head (the first `head_end` bytes).

    The head identifies the server that started the file, the time, and the preceding GTIDs. The head never changes.
    """
    return hashlib.sha256(read_plain(file, 0, head_end)).hexdigest()
