"""Until when an archive is complete: a time up to which nothing is missing, also after the last commit. Pure.

The server is asked for its time, and then for the end of its binlog. When the archive has reached that end, it is
complete until that time. So a quiet server can be restored to times after its last commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.model import BinlogCoordinates
from zsnapdb.planning.binlog.history import CompleteUntil, EndKind, RouteEnd, RouteFile

INTERVAL = 60.0
"""The shortest time in seconds between two records of one archiver."""

_FAILOVERS = (EndKind.LOST_IN_FAILOVER, EndKind.UNPROVEN_FAILOVER)


@dataclass(frozen=True)
class CommitHorizon:
    """Every transaction that the server commits with a time up to `until` lies before `end` in its binlogs.

    `until` is in microseconds UTC, by the clock of the server.
    """

    until: int
    end: BinlogCoordinates


def is_reached(horizon: CommitHorizon, end: BinlogCoordinates | None) -> bool:
    """Whether an archive that ends there holds everything before the horizon. Binlogs of another name are no proof."""
    if end is None:
        return False
    (base, _, number), (asked, _, least) = end.file.rpartition("."), horizon.end.file.rpartition(".")
    return base == asked and (int(number), end.offset) >= (int(least), horizon.end.offset)


@dataclass(frozen=True)
class LastRecord:
    """The last record of an archiver: its time until which the archive was complete, and the seconds since then."""

    until: int
    age: float


def is_worth_recording(last: LastRecord | None, until: int, archived_bytes: int) -> bool:
    """Whether a round of an archiver is followed by a record that the archive is complete until this time.

    `last` is None if this archiver wrote no record. A round that archived something already says how far the archive
    reaches. If the clock of the server was set back, the last record says too much, and is replaced at once.
    """
    if last is None or until < last.until:
        return True
    return last.age >= INTERVAL and archived_bytes == 0


def complete_until(files: Sequence[RouteFile], end: RouteEnd, records: Sequence[CompleteUntil]) -> int | None:
    """Return until when a route through these files has all that was committed; None if no record says so.

    A record counts if the route passes through its place, and ends in the incarnation of the record. A record of
    another place is old, or of bytes that the archive lost. After a failover that the archive cannot follow, the old
    server does not say what the new server committed.
    """
    if not files or end.kind in _FAILOVERS:
        return None
    last = files[-1].incarnation
    ends = {file.name: file.end for file in files if file.incarnation == last}
    times = [
        record.until
        for record in records
        if record.incarnation == last and record.name in ends and record.end <= ends[record.name]
    ]
    return max(times, default=None)
