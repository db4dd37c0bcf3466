"""The complete transactions of a binlog file, one by one: where each lies, its GTID, when it was committed.

In constant memory.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import BinaryIO

from zsnapdb.gtid import Gtids
from zsnapdb.model import Flavour
from zsnapdb.mysql.binlog_events import (
    ANONYMOUS_GTID,
    FORMAT,
    GTID,
    MALFORMED,
    MARIADB_GTID_LIST,
    PREVIOUS_GTIDS,
    TAGGED_GTID,
    Event,
    decisive_events,
    malformed,
)
from zsnapdb.mysql.binlog_gtids import committed_at, tagged_gtid
from zsnapdb.mysql.binlog_walk import Walk
from zsnapdb.planning.family import flavour_in

Number = tuple[str, int] | tuple[int, int, int]
"""A GTID in its parts: source and number (MySQL), or domain, server and sequence (MariaDB)."""

_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class BinlogTransaction:
    """A complete transaction: bytes from `start` to `end` of its file, its GTID (None if it has none), when it was committed.

    `committed` is in microseconds UTC. MySQL 8.0.1 and newer say it so; where `is_exact` is False the server gave whole
    seconds, and the commit lies somewhere in that second. Commit times follow the order of the file except where the
    server's clock was set back.
    """

    start: int
    end: int
    number: Number | None
    committed: int
    is_exact: bool

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def gtid(self) -> str | None:
        """The GTID as the server prints it: `uuid:7`, `uuid:tag:7`, or `0-1-42`."""
        if self.number is None:
            return None
        if len(self.number) == 2:
            return f"{self.number[0]}:{self.number[1]}"
        return "-".join(str(part) for part in self.number)


@dataclass(frozen=True)
class Head:
    """What a binlog file says of itself before its first transaction.

    `created` is when the server began the file (UTC seconds); `previous` are the GTIDs before the file, None if it does
    not say; `end` is the offset behind all this, or None while the server is still writing it.
    """

    flavour: Flavour
    version: str
    server_id: int
    created: int
    previous: Gtids | None
    end: int | None


def read_head(file: BinaryIO, name: str) -> Head | None:
    """Return the head of an open binlog; None if its first event is not there yet.

    DamagedError or PreflightError as the file deserves.
    """
    size = file.seek(0, 2)
    walk = Walk()
    head = None
    try:
        for event in decisive_events(file, name, size):
            if event.kind == FORMAT:
                version = bytes(event.body[2:52]).rstrip(b"\0").decode(errors="replace")
                flavour = flavour_in(version)
                head = Head(flavour, version, event.server_id, event.when, None, None)
            elif event.kind in (PREVIOUS_GTIDS, MARIADB_GTID_LIST) and head is not None:
                walk.see(event)
                return Head(head.flavour, head.version, head.server_id, head.created, walk.gtids(), event.end)
            else:
                # MariaDB before 10.0 and MySQL before 5.6 begin with transactions.
                break
    except MALFORMED as error:
        raise malformed(name, error) from error
    return head


def transactions(
    file: BinaryIO, name: str, start: int | None = None, size: int | None = None
) -> Generator[BinlogTransaction, None, int]:
    """Yield the complete transactions of an open binlog in order.

    Return the offset behind the last one and what follows it outside of any.

    `start`: begin at this offset, which must be the end of a transaction or of the head. `size`: look at no more than
    so many bytes of the file. DamagedError if an event in the middle is wrong; PreflightError if the file is encrypted.
    """
    walk = Walk()
    events = decisive_events(file, name, file.seek(0, 2) if size is None else size, start)
    try:
        while True:
            event = next(events)
            if walk.see(event) and walk.opened is not None:
                committed, is_exact = _committed(walk.opened, event)
                yield BinlogTransaction(walk.opened.start, event.end, walk.number, committed, is_exact)
    except StopIteration as end:
        walk.finish(end.value)
    except MALFORMED as error:
        raise malformed(name, error) from error
    return walk.offset


def _committed(first: Event, last: Event) -> tuple[int, bool]:
    """Return when a transaction was committed and whether the server said so to the microsecond."""
    exact = 0
    if first.kind in (GTID, ANONYMOUS_GTID):
        exact = committed_at(first.body)
    elif first.kind == TAGGED_GTID:
        exact = tagged_gtid(first.body)[2]
    return (exact, True) if exact else (max(first.when, last.when) * _SECOND, False)
