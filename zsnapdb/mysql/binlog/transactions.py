"""Complete transactions of a binlog file, found by the decisive events of MySQL and MariaDB."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import GtidPosition, Gtids, GtidSet
from zsnapdb.mysql.binlog.events import (
    ANONYMOUS_GTID,
    FORMAT,
    GTID,
    INCIDENT,
    MAGIC,
    MALFORMED,
    MARIADB_GTID,
    MARIADB_GTID_LIST,
    MARIADB_QUERY_COMPRESSED,
    PAYLOAD,
    PREVIOUS_GTIDS,
    QUERY,
    TABLE_MAP,
    TAGGED_GTID,
    XA_PREPARE,
    XID,
    Event,
    decisive_events,
    malformed,
)
from zsnapdb.planning.server_family import flavour_in

_COMMITTED_AT = 42
_HAS_ORIGINAL = 1 << 55


def previous_gtids(body: memoryview) -> GtidSet:
    """Decode a Previous-GTIDs event, which MySQL writes with Gtid_set::encode.

    From MySQL 8.3 on, byte 7 marks the format with tags.
    """
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
    """Decode an unsigned integer of mysql::serialization. Return the integer and the offset after it.

    The number of bytes after the first byte equals the number of consecutive low bits that are set in it.
    """
    first = body[at]
    extra = 0
    while extra < 8 and first >> extra & 1:
        extra += 1
    raw = int.from_bytes(body[at : at + extra + 1], "little")
    return raw >> (extra + 1 if extra < 8 else 8), at + extra + 1


def tagged_gtid(body: memoryview) -> tuple[str, int, int]:
    """Decode the source, number and commit time (microseconds UTC; 0: none) of a tagged GTID event of MySQL 8.3+.

    The format of mysql::serialization is a version, a size, and pairs of an id and a value. Field 1 is the UUID as 16
    variable-length integers, field 2 the number (signed), field 3 the tag, and field 6 the immediate commit timestamp.
    Fields 0, 4 and 5 are single integers.
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
    """Return the immediate commit timestamp of a GTID or anonymous GTID event of MySQL, in microseconds UTC.

    At this time the server wrote the transaction to its binlog. Before 8.0.1, the timestamp is 0. It consists of the 7
    bytes after the logical clock. The highest bit shows whether the timestamp of the original server follows
    (Gtid_log_event::write_body_to_memory).
    """
    if len(body) < _COMMITTED_AT + 7:
        return 0
    return int.from_bytes(body[_COMMITTED_AT : _COMMITTED_AT + 7], "little") & ~_HAS_ORIGINAL


_NUMBER = struct.Struct("<q")
_MARIADB_HEAD = struct.Struct("<QIB")
_STANDALONE = 1
_MOST_RUNS = 1 << 16


def query_text(body: memoryview) -> bytes:
    """Return the first 32 bytes of a query event's statement.

    The header, the status variables and the schema precede the statement.
    """
    schema_length = body[8]
    variables = struct.unpack_from("<H", body, 11)[0]
    return bytes(body[13 + variables + schema_length + 1 :][:32])


class GtidCollector:
    """A growing set of GTIDs, stored as intervals.

    Memory use grows with the number of gaps, not with the number of transactions.
    """

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
                # Parallel appliers write the numbers out of order. Merging leaves few intervals.
                joined = GtidSet.of((source, (run[0], run[1])) for run in runs).intervals[source]
                self._runs[source] = [list(run) for run in joined]
                self._most = max(self._most, 2 * len(joined))

    def set(self) -> GtidSet:
        return GtidSet.of((source, (first, last)) for source, runs in self._runs.items() for first, last in runs)

    def __bool__(self) -> bool:
        return bool(self._runs)


class TransactionTracker:
    """Tracks the open transaction and the last complete transaction while decisive events are read.

    `opened` is the event that started the open transaction. `number` is the GTID of the open transaction: source and
    number (MySQL), or domain, server and sequence (MariaDB). `has_closed` shows whether a transaction has ended since
    reading started. `last` is the GTID of the last complete transaction.
    """

    def __init__(self) -> None:
        self.offset = len(MAGIC)
        self.base = GtidSet()
        self.numbers = GtidCollector()
        self.heads: dict[int, tuple[int, int]] = {}
        self.family: Flavour | None = None
        self.has_gtids = False
        self.has_closed = False
        self._open = False
        self._begun = False
        self.opened: Event | None = None
        self.number: tuple[str, int] | tuple[int, int, int] | None = None
        self.last: tuple[str, int] | tuple[int, int, int] | None = None
        self._sources: dict[bytes, str] = {}

    @classmethod
    def after(cls, gtids: Gtids) -> TransactionTracker:
        """Return the tracker for reading that starts after a file's head.

        `gtids` contains the GTIDs of all earlier transactions.
        """
        walk = cls()
        if isinstance(gtids, GtidPosition):
            walk.family, walk.has_gtids, walk.heads = Flavour.MARIADB, True, dict(gtids.heads)
        else:
            walk.family, walk.base = Flavour.MYSQL, gtids
        return walk

    @property
    def is_inside(self) -> bool:
        """Return whether the open transaction started with BEGIN. Otherwise it is a single statement."""
        return self._open and self._begun

    def see(self, event: Event) -> bool:
        """Process the next event. Return whether it ends a transaction."""
        kind = event.kind
        if not self._open:
            # Events that were skipped since the last transaction belong to no transaction.
            self.offset = event.start
        if kind in (GTID, ANONYMOUS_GTID, TAGGED_GTID, MARIADB_GTID):
            self._begin(event)
            return False
        if kind == PREVIOUS_GTIDS:
            self.base, self.family = previous_gtids(event.body), Flavour.MYSQL
        elif kind == MARIADB_GTID_LIST:
            self.family, self.has_gtids = Flavour.MARIADB, True
            count = struct.unpack_from("<I", event.body, 0)[0] & 0x0FFFFFFF
            for index in range(count):
                # For each domain, the last entry is the newest (MariaDB sql/log_event.cc, Gtid_list_log_event).
                domain, server, sequence = struct.unpack_from("<IIQ", event.body, 4 + 16 * index)
                self.heads[domain] = (server, sequence)
        if not self._open:
            self.offset = event.end
        elif self._ends(event):
            self._close(event.end)
            return True
        return False

    def finish(self, end: int) -> None:
        """Record that reading ended at the offset `end`. Events outside transactions are treated as complete."""
        if not self._open:
            self.offset = end

    def _begin(self, event: Event) -> None:
        self._open, self._begun, self.opened, self.number = True, False, event, None
        if event.kind == GTID:
            raw = bytes(event.body[1:17])
            source = self._sources.get(raw) or self._sources.setdefault(raw, str(uuid.UUID(bytes=raw)))
            self.number = (source, _NUMBER.unpack_from(event.body, 17)[0])
        elif event.kind == TAGGED_GTID:
            self.number = tagged_gtid(event.body)[:2]
        elif event.kind == MARIADB_GTID:
            sequence, domain, flags = _MARIADB_HEAD.unpack_from(event.body, 0)
            self.number = (domain, event.server_id, sequence)
            self._begun = not flags & _STANDALONE
            self.family, self.has_gtids = Flavour.MARIADB, True

    def _ends(self, event: Event) -> bool:
        # MySQL gives an incident (changes it could not log) a GTID; no event follows it (binlog.cc, write_incident).
        if event.kind in (XID, XA_PREPARE, PAYLOAD, INCIDENT):
            return True
        if event.kind == MARIADB_QUERY_COMPRESSED:
            return not self._begun
        if event.kind != QUERY:
            return False
        text = query_text(event.body)
        if text == b"BEGIN" or text.startswith((b"XA START", b"XA BEGIN")):
            self._begun = True
            return False
        return not self._begun or text in (b"COMMIT", b"ROLLBACK")

    def _close(self, offset: int) -> None:
        self.offset, self._open, self.last, self.has_closed = offset, False, self.number, True
        if self.number is None:
            return
        if len(self.number) == 2:
            self.has_gtids = True
            self.numbers.add(*self.number)
        else:
            domain, server, sequence = self.number
            self.heads[domain] = (server, sequence)

    def gtids(self) -> Gtids | None:
        if self.family is Flavour.MARIADB:
            return GtidPosition(dict(sorted(self.heads.items())))
        if self.family is Flavour.MYSQL and (self.has_gtids or self.base.intervals):
            return self.base.union(self.numbers.set())
        return GtidSet() if self.family is Flavour.MYSQL else None


Number = tuple[str, int] | tuple[int, int, int]
"""Parts of a GTID: source and number (MySQL), or domain, server and sequence (MariaDB)."""

_SECOND = 1_000_000
_END_OF_TIME = 253_402_300_800 * _SECOND


def gtid_text(number: Number) -> str:
    """Return a GTID as the server prints it, for example `uuid:7`, `uuid:tag:7` or `0-1-42`."""
    return f"{number[0]}:{number[1]}" if len(number) == 2 else "-".join(str(part) for part in number)


@dataclass(frozen=True, slots=True)
class BinlogTransaction:
    """A complete transaction, with its place in the file, its GTID (None if it has no GTID) and its commit time.

    `committed` is in microseconds UTC, as recorded by MySQL 8.0.1 and newer. If `is_exact` is False, the server
    recorded only the second in which the transaction was committed. Commit times follow the order of the file, unless
    the server's clock was set back.
    """

    start: int
    end: int
    number: Number | None
    committed: int
    is_exact: bool

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.end - self.start

    @property
    def gtid(self) -> str | None:
        return None if self.number is None else gtid_text(self.number)


@dataclass(frozen=True)
class BinlogHeader:
    """The head of a binlog file, which consists of the events before its first transaction.

    `created` is the time when the server started the file (UTC seconds). `previous` contains the GTIDs of all earlier
    files (None means the file does not record them). `end` is the offset after the head (None means the server is still
    writing the head).
    """

    flavour: Flavour
    version: str
    server_id: int
    created: int
    previous: Gtids | None
    end: int | None


def read_head(file: BinaryIO, name: str) -> BinlogHeader | None:
    """Return the head of an open binlog; None if the server has not written the first event yet.

    Raise DamagedError if an event is damaged, and PreflightError if the file is encrypted.
    """
    size = file.seek(0, 2)
    walk = TransactionTracker()
    head = None
    try:
        for event in decisive_events(file, name, size):
            if event.kind == FORMAT:
                version = bytes(event.body[2:52]).rstrip(b"\0").decode(errors="replace")
                flavour = flavour_in(version)
                head = BinlogHeader(flavour, version, event.server_id, event.when, None, None)
            elif event.kind in (PREVIOUS_GTIDS, MARIADB_GTID_LIST) and head is not None:
                walk.see(event)
                return BinlogHeader(head.flavour, head.version, head.server_id, head.created, walk.gtids(), event.end)
            else:
                # In MariaDB before 10.0 and MySQL before 5.6, files start with transactions.
                break
    except MALFORMED as error:
        raise malformed(name, error) from error
    return head


def transactions(
    file: BinaryIO,
    name: str,
    start: int | None = None,
    size: int | None = None,
    watch: Callable[[Event, TransactionTracker, bool], None] | None = None,
) -> Generator[BinlogTransaction, None, int]:
    """Yield the complete transactions of an open binlog in order.

    Return the offset at which the last transaction ends. Later events that belong to no transaction count as a part of
    the last transaction. Reading starts at the offset `start`, which is the end of a transaction or of the head. At
    most `size` bytes of the file are read. `watch` receives each table map and each decisive event, and whether the
    event ends a transaction. Raises DamagedError if an event before the last event is damaged, and PreflightError if
    the file is encrypted.
    """
    walk, others = TransactionTracker(), () if watch is None else (TABLE_MAP,)
    events = decisive_events(file, name, file.seek(0, 2) if size is None else size, start, others)
    try:
        while True:
            event = next(events)
            is_end = event.kind != TABLE_MAP and walk.see(event)
            if watch is not None:
                watch(event, walk, is_end)
            if is_end and walk.opened is not None:
                committed, is_exact = commit_time_of(walk.opened, event)
                yield BinlogTransaction(walk.opened.start, event.end, walk.number, committed, is_exact)
    except StopIteration as end:
        walk.finish(end.value)
    except MALFORMED as error:
        raise malformed(name, error) from error
    return walk.offset


def commit_time_of(first: Event, last: Event) -> tuple[int, bool]:
    """Return the commit time of a transaction, and whether it is exact to the microsecond."""
    exact = 0
    if first.kind in (GTID, ANONYMOUS_GTID):
        exact = committed_at(first.body)
    elif first.kind == TAGGED_GTID:
        exact = tagged_gtid(first.body)[2]
    if exact >= _END_OF_TIME:
        raise ValueError(f"the commit time {exact} is after the year 9999")
    return (exact, True) if exact else (max(first.when, last.when) * _SECOND, False)
