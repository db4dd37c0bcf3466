"""Complete transactions of a binlog file, one by one: offsets, GTID, commit time. Memory use is constant."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import Gtids
from zsnapdb.mysql.binlog.events import (
    ANONYMOUS_GTID,
    FORMAT,
    GTID,
    MALFORMED,
    MARIADB_GTID_LIST,
    PREVIOUS_GTIDS,
    TABLE_MAP,
    TAGGED_GTID,
    Event,
    decisive_events,
    malformed,
)
from zsnapdb.mysql.binlog.transaction_tracker import Walk, committed_at, tagged_gtid
from zsnapdb.planning.server_family import flavour_in

Number = tuple[str, int] | tuple[int, int, int]
"""Parts of a GTID: source and number (MySQL), or domain, server and sequence (MariaDB)."""

_SECOND = 1_000_000
_END_OF_TIME = 253_402_300_800 * _SECOND


def gtid_text(number: Number) -> str:
    """Return a GTID as the server prints it: `uuid:7`, `uuid:tag:7`, or `0-1-42`."""
    return f"{number[0]}:{number[1]}" if len(number) == 2 else "-".join(str(part) for part in number)


@dataclass(frozen=True, slots=True)
class BinlogTransaction:
    """A complete transaction: its bytes in the file, its GTID (None if it has none), its commit time.

    `committed` is in microseconds UTC, as recorded by MySQL 8.0.1 and newer. If `is_exact` is False, the server
    recorded whole seconds, and the commit is within that second. Commit times follow the order of the file, unless the
    server's clock was set back.
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
    """Header events of a binlog file, before its first transaction.

    `created` is when the server started the file (UTC seconds). `previous` are the GTIDs before the file; None if the
    file does not have them. `end` is the offset after the head; None while the server writes the head.
    """

    flavour: Flavour
    version: str
    server_id: int
    created: int
    previous: Gtids | None
    end: int | None


def read_head(file: BinaryIO, name: str) -> BinlogHeader | None:
    """Return the head of an open binlog; None if the first event is not written yet.

    Raise DamagedError if an event is wrong, PreflightError if the file is encrypted.
    """
    size = file.seek(0, 2)
    walk = Walk()
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
                # Files of MariaDB before 10.0 and MySQL before 5.6 start with transactions.
                break
    except MALFORMED as error:
        raise malformed(name, error) from error
    return head


def transactions(
    file: BinaryIO,
    name: str,
    start: int | None = None,
    size: int | None = None,
    watch: Callable[[Event, Walk, bool], None] | None = None,
) -> Generator[BinlogTransaction, None, int]:
    """Yield the complete transactions of an open binlog in order.

    Return the offset after the last transaction and any events that follow it outside transactions. `start` is the
    offset to start at, the end of a transaction or of the head. At most `size` bytes of the file are read. `watch`
    receives each table map and each decisive event, and whether it ends a transaction. Raise DamagedError if an event
    before the end is wrong, PreflightError if the file is encrypted.
    """
    walk, others = Walk(), () if watch is None else (TABLE_MAP,)
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
