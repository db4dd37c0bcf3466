"""Reads a binlog file by its event headers, to the end of its last complete transaction.

Format: MySQL internals "Binary Log Event" and libs/mysql/binlog/event of MySQL 9.x; MariaDB manual "Binlog Event Header",
"GTID_EVENT", "GTID_LIST_EVENT". A header has 19 bytes: time (u32), type (u8), server id (u32), event size (u32), next
position (u32, wraps at 4 GiB; MariaDB 11 writes 0 inside of transactions), flags (u16); all little-endian. Unknown types
are skipped by their size. tests/system/test_binlog_tail.py compares all this with real servers.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from zsnapdb.errors import ConsistencyError, DamagedError, PreflightError
from zsnapdb.gtid import GtidPosition, Gtids, GtidSet
from zsnapdb.model import BinlogCoordinates, Flavour, Position

MAGIC = b"\xfebin"
ENCRYPTED_MAGIC = b"\xfdbin"
HEADER = struct.Struct("<IBIIIH")
_NUMBER = struct.Struct("<q")
_MARIADB_HEAD = struct.Struct("<QIB")

_QUERY, _FORMAT, _XID = 2, 15, 16
_INCIDENT, _GTID, _ANONYMOUS_GTID, _PREVIOUS_GTIDS, _XA_PREPARE, _PAYLOAD, _TAGGED_GTID = 26, 33, 34, 35, 38, 40, 42
_MARIADB_GTID, _MARIADB_GTID_LIST, _MARIADB_ENCRYPTION = 162, 163, 164
_MARIADB_QUERY_COMPRESSED = 165
_IN_USE = 1
_STANDALONE = 1
_CRC_BYTES = 4
_WINDOW = 1 << 20
_MOST_RUNS = 1 << 16
_RESIDUE = 0x2144DF1C
"""What CRC-32 gives over any data followed by its own CRC-32, little-endian."""

_DECISIVE = frozenset(
    {
        _QUERY,
        _FORMAT,
        _XID,
        _INCIDENT,
        _GTID,
        _ANONYMOUS_GTID,
        _PREVIOUS_GTIDS,
        _XA_PREPARE,
        _PAYLOAD,
        _TAGGED_GTID,
        _MARIADB_GTID,
        _MARIADB_GTID_LIST,
        _MARIADB_ENCRYPTION,
        _MARIADB_QUERY_COMPRESSED,
    }
)
"""Kinds that begin or end a transaction, or say what came before. Most events, rows and their tables above all, are only passed over."""

_WHOLE = frozenset({_FORMAT, _PREVIOUS_GTIDS, _MARIADB_GTID_LIST})
"""Kinds whose body is needed to its end however long it is."""


class Event(NamedTuple):
    """One event: where it starts and ends in the file (bytes), and its body without header and checksum.

    The body of an event longer than the window is cut there unless all of it is needed.
    """

    kind: int
    server_id: int
    start: int
    end: int
    body: memoryview


@dataclass(frozen=True)
class Tail:
    """The end of a binlog file: offset behind its last complete transaction, the GTIDs up to there.

    `unfinished` is the number of bytes behind it that belong to no complete transaction.
    """

    offset: int
    gtids: Gtids | None
    unfinished: int


def _check_magic(file: BinaryIO, name: str, size: int) -> bool:
    """Return whether the file is a binlog with room for events; one that was only just created is not yet."""
    file.seek(0)
    magic = file.read(len(MAGIC))
    if size < len(MAGIC) and MAGIC.startswith(magic):
        return False
    if magic == ENCRYPTED_MAGIC:
        raise PreflightError(f"binlog {name} is encrypted", hint="set binlog_encryption=OFF; encrypted binlogs cannot be read from their files")
    if magic != MAGIC:
        raise DamagedError(f"{name} is not a binlog: it starts with {magic!r}")
    return True


def _events(file: BinaryIO, name: str, size: int) -> Generator[Event, None, int]:
    """Yield the decisive events of a file and return where the walk ended; a last event that is cut or has a wrong checksum ends it.

    Every event is checked, decisive or not. It is read through a window of constant size. DamagedError if an event in the middle is
    wrong, PreflightError if the file is encrypted.
    """
    if not _check_magic(file, name, size):
        return 0
    at = base = len(MAGIC)
    window = memoryview(b"")
    has_checksum = False
    while at + HEADER.size <= size:
        place = at - base
        if place + HEADER.size > len(window):
            window, base, place = _window(file, at), at, 0
        _, kind, server_id, length, following, flags = HEADER.unpack_from(window, place)
        end = at + length
        if length < HEADER.size or end > size:
            # A header that is cut off after says rightly where its event would end; one that does not is damaged, as may be what follows.
            if following not in (0, end & 0xFFFFFFFF) or (length < HEADER.size and any(window[place : place + HEADER.size])):
                raise _damaged(name, at, "says a wrong size")
            return at
        if place + length > len(window):
            window, base, place = _window(file, at, length if kind in _WHOLE else 0), at, 0
        if kind == _FORMAT:
            has_checksum = window[place + length - 5] == 1
        elif at == len(MAGIC):
            raise _damaged(name, at, "is not the description of the file's format")
        # A format description has a checksum also if nothing else in its file has (log_event.cc, Format_description_log_event::write).
        if kind == _FORMAT:
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
            raise _damaged(name, at, "does not have its checksum")
        if kind in _DECISIVE:
            yield Event(kind, server_id, at, end, window[place + HEADER.size : place + length - (_CRC_BYTES if has_checksum or kind == _FORMAT else 0)])
        at = end
    return at


def _window(file: BinaryIO, at: int, least: int = 0) -> memoryview:
    file.seek(at)
    return memoryview(file.read(max(_WINDOW, least)))


def _format_is_right(event: memoryview, flags: int) -> bool:
    """Whether a format description has its checksum; the in-use flag is set after that was made (log_event.h, LOG_EVENT_BINLOG_IN_USE_F)."""
    head = HEADER.pack(*HEADER.unpack_from(event)[:5], flags & ~_IN_USE)
    return zlib.crc32(event[HEADER.size :], zlib.crc32(head)) == _RESIDUE


def _long_is_right(file: BinaryIO, at: int, length: int) -> bool:
    """Whether an event longer than the window has its checksum; read piece by piece."""
    file.seek(at)
    checksum = 0
    while length > 0:
        piece = file.read(min(_WINDOW, length))
        if not piece:
            return False
        checksum = zlib.crc32(piece, checksum)
        length -= len(piece)
    return checksum == _RESIDUE


def _damaged(name: str, at: int, what: str) -> DamagedError:
    return DamagedError(f"binlog {name}: the event at {at} {what}", hint="see the server's error log and `zpool status`")


def _previous_gtids(body: memoryview) -> GtidSet:
    """Decode a Previous-GTIDs event: Gtid_set::encode of MySQL 8.3+, where byte 7 tells the form with tags."""
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
    """Decode an unsigned integer of mysql::serialization: as many low set bits as extra bytes follow; return it and what follows."""
    first = body[at]
    extra = 0
    while extra < 8 and first >> extra & 1:
        extra += 1
    raw = int.from_bytes(body[at : at + extra + 1], "little")
    return raw >> (extra + 1 if extra < 8 else 8), at + extra + 1


def _tagged_gtid(body: memoryview) -> tuple[str, int]:
    """Decode source and number of a tagged GTID event (MySQL 8.3+, mysql::serialization: version, size, then id-value pairs).

    Field 1 is the UUID as 16 variable-length integers, 2 the number (signed), 3 the tag.
    """
    _, at = _varlen(body, 0)
    _, at = _varlen(body, at)
    _, at = _varlen(body, at)
    source, number, tag = "", 0, ""
    while at < len(body):
        field_id, at = _varlen(body, at)
        if field_id == 0:
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
            break
        else:
            break
    return (f"{source}:{tag}" if tag else source), number


def _query_text(body: memoryview) -> bytes:
    """Return the statement of a query event: behind post-header, status variables and schema name."""
    schema_length = body[8]
    variables = struct.unpack_from("<H", body, 11)[0]
    return bytes(body[13 + variables + schema_length + 1 :][:32])


class _Numbers:
    """GTIDs as they come, kept as intervals: a file of millions of transactions takes no more memory than its gaps."""

    def __init__(self) -> None:
        self._runs: dict[str, list[list[int]]] = {}
        self._most = _MOST_RUNS

    def add(self, source: str, number: int) -> None:
        runs = self._runs.setdefault(source, [])
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
            if len(runs) > self._most:
                # Parallel appliers write numbers out of order; joined, they are few again.
                joined = GtidSet.of((source, (run[0], run[1])) for run in runs).intervals[source]
                self._runs[source] = [list(run) for run in joined]
                self._most = max(self._most, 2 * len(joined))

    def set(self) -> GtidSet:
        return GtidSet.of((source, (first, last)) for source, runs in self._runs.items() for first, last in runs)

    def __bool__(self) -> bool:
        return bool(self._runs)


class _Walk:
    """Follows transactions through the decisive events: which is open, what was complete last."""

    def __init__(self) -> None:
        self.offset = len(MAGIC)
        self.base = GtidSet()
        self.numbers = _Numbers()
        self.heads: dict[int, tuple[int, int]] = {}
        self.family: Flavour | None = None
        self.has_gtids = False
        self._open = False
        self._begun = False
        self._mysql: tuple[str, int] | None = None
        self._mariadb: tuple[int, int, int] | None = None
        self._sources: dict[bytes, str] = {}

    def see(self, event: Event) -> None:
        kind = event.kind
        if not self._open:
            # What was passed over since the last transaction belongs to none.
            self.offset = event.start
        if kind in (_GTID, _ANONYMOUS_GTID, _TAGGED_GTID, _MARIADB_GTID):
            self._begin(event)
            return
        if kind == _PREVIOUS_GTIDS:
            self.base, self.family = _previous_gtids(event.body), Flavour.MYSQL
        elif kind == _MARIADB_GTID_LIST:
            self._gtid_list(event.body)
        if not self._open:
            self.offset = event.end
        elif self._ends(event):
            self._close(event.end)

    def finish(self, end: int) -> None:
        """Take in that the walk ended at `end`: what is outside of a transaction there is complete."""
        if not self._open:
            self.offset = end

    def _begin(self, event: Event) -> None:
        self._open, self._begun, self._mysql, self._mariadb = True, False, None, None
        if event.kind == _GTID:
            raw = bytes(event.body[1:17])
            source = self._sources.get(raw) or self._sources.setdefault(raw, str(uuid.UUID(bytes=raw)))
            self._mysql = (source, _NUMBER.unpack_from(event.body, 17)[0])
        elif event.kind == _TAGGED_GTID:
            self._mysql = _tagged_gtid(event.body)
        elif event.kind == _MARIADB_GTID:
            sequence, domain, flags = _MARIADB_HEAD.unpack_from(event.body, 0)
            self._mariadb = (domain, event.server_id, sequence)
            self._begun = not flags & _STANDALONE
            self.family, self.has_gtids = Flavour.MARIADB, True

    def _gtid_list(self, body: memoryview) -> None:
        self.family, self.has_gtids = Flavour.MARIADB, True
        count = struct.unpack_from("<I", body, 0)[0] & 0x0FFFFFFF
        for index in range(count):
            # Within a domain the last entry is the newest (MariaDB sql/log_event.cc, Gtid_list_log_event).
            domain, server, sequence = struct.unpack_from("<IIQ", body, 4 + 16 * index)
            self.heads[domain] = (server, sequence)

    def _ends(self, event: Event) -> bool:
        # MySQL gives an incident (changes it could not log) a GTID, and nothing follows it (binlog.cc, write_incident).
        if event.kind in (_XID, _XA_PREPARE, _PAYLOAD, _INCIDENT):
            return True
        if event.kind == _MARIADB_QUERY_COMPRESSED:
            return not self._begun
        if event.kind != _QUERY:
            return False
        text = _query_text(event.body)
        if text == b"BEGIN" or text.startswith((b"XA START", b"XA BEGIN")):
            self._begun = True
            return False
        return not self._begun or text in (b"COMMIT", b"ROLLBACK")

    def _close(self, offset: int) -> None:
        self.offset, self._open = offset, False
        if self._mysql is not None:
            self.has_gtids = True
            self.numbers.add(*self._mysql)
        if self._mariadb is not None:
            domain, server, sequence = self._mariadb
            self.heads[domain] = (server, sequence)

    def gtids(self) -> Gtids | None:
        if self.family is Flavour.MARIADB:
            return GtidPosition(dict(sorted(self.heads.items())))
        if self.family is Flavour.MYSQL and (self.has_gtids or self.base.intervals):
            return self.base.union(self.numbers.set())
        return GtidSet() if self.family is Flavour.MYSQL else None


def tail_of(file: BinaryIO, name: str) -> Tail:
    """Return the tail of an open binlog. DamagedError or PreflightError as the file deserves."""
    size = file.seek(0, os.SEEK_END)
    walk = _Walk()
    events = _events(file, name, size)
    try:
        while True:
            event = next(events)
            if event.kind == _MARIADB_ENCRYPTION:
                raise PreflightError(f"binlog {name} is encrypted", hint="set encrypt_binlog=OFF; encrypted binlogs cannot be read from their files")
            walk.see(event)
    except StopIteration as end:
        walk.finish(end.value)
    except (struct.error, IndexError, ValueError) as error:
        raise DamagedError(
            f"binlog {name}: an event does not have the form it should: {error}", hint="see the server's error log and `zpool status`"
        ) from error
    return Tail(walk.offset, walk.gtids(), size - walk.offset)


def read_tail(path: Path) -> Tail:
    """Return the tail of a binlog file. Plain reads: a mapping would outlive an interrupt and keep its snapshot busy."""
    with path.open("rb") as file:
        return tail_of(file, path.name)


LOG_LISTS = (".index", ".index_crash_safe", ".~rec~")
"""Ends of the files that list binlogs or relay logs by their whole paths (sql/binlog.cc of MySQL, sql/log.cc of MariaDB).

The first is the index; the second takes its place while it is replaced. The third lists files under creation or purge: a server that
starts after a crash DELETES those that are not in its index. On a copy taken during a rotation it would delete the source's live binlog.
"""


def index_entries(index: Path) -> list[str]:
    """Return the lines of a binlog index, oldest first, as the server wrote them. ConsistencyError if it cannot be read.

    While the server replaces its index there is only the crash-safe one, which it then takes for it.
    """
    try:
        chosen = index if index.exists() else index.with_suffix(LOG_LISTS[1])
        return [line for line in chosen.read_text().splitlines() if line]
    except OSError as error:
        raise ConsistencyError(
            f"reading the binlog index {index}: {error.strerror}", hint="is the snapshot visible under .zfs, and zsnapdb run as root?"
        ) from error


def position_in(index: Path, folder: Path, flavour: Flavour, *, has_gtids: bool) -> Position:
    """Return the position a server recovers to that finds this index and the binlogs in `folder`.

    It is the end of the last complete transaction in the newest binlog (MySQL sql/binlog/recovery.cc). A newest file
    that is still empty, because a rotation was under way, stands for the end of the one before it.
    """
    entries = index_entries(index)
    if not entries:
        raise ConsistencyError(f"the binlog index {index} is empty", hint="the snapshot was taken while the server initialised its binlog; run again")
    for name in reversed([Path(entry).name for entry in entries]):
        file = folder / name
        if not file.exists():
            raise ConsistencyError(f"{index} names {name}, which is not in {folder}", hint="was a binlog removed by hand? see `SHOW BINARY LOGS`")
        tail = read_tail(file)
        if tail.offset <= len(MAGIC) or (has_gtids and tail.gtids is None):
            continue
        return Position(flavour, BinlogCoordinates(name, tail.offset), tail.gtids if has_gtids else None, "binlog tail in the snapshot")
    raise ConsistencyError(f"no binlog of {index} holds a complete event", hint="run the backup again")
