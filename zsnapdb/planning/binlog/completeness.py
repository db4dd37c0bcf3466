"""Until when an archive is complete: a time up to which nothing is missing, also after the last commit. Pure.

The server is asked for its time, and then for the end of its binlog. When the archive has reached that end, it is
complete until that time. So a quiet server can be restored to times after its last commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.model import BinlogCoordinates
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.history import CompleteUntil, EndKind, RouteEnd, RouteFile

INTERVAL = 60.0
"""The shortest time in seconds between two records of one archiver, if no objective needs more."""
_SECOND = 1_000_000
_SLACK = 5.0
"""For how many seconds a round and its record may last; the server's time is cut to whole seconds."""

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


def is_worth_recording(last: LastRecord | None, until: int, interval: float, archived: int | None) -> bool:
    """Whether a round of an archiver is followed by a record that the archive is complete until this time.

    `last` is None if this archiver wrote no record; `interval` is the time in seconds between two. `archived` is the
    time of the last archived commit, which already says how far the archive reaches. If the clock of the server was set
    back, the last record says too much, and is replaced at once.
    """
    if last is None or until < last.until:
        return True
    is_said = archived is not None and until - archived < interval * _SECOND
    return last.age >= interval and not is_said


def record_interval(objectives: ObjectiveSettings) -> float:
    """Return the seconds between two records: a third of the shortest time until an objective about the archive warns.

    So the objectives of a server that commits nothing stay met.
    """
    limits = [limit for limit in (objectives.archive_lag, objectives.rpo) if limit is not None]
    return min(INTERVAL, *(limit * objectives.warn_at / 3 for limit in limits)) if limits else INTERVAL


def least_limit(objectives: ObjectiveSettings, round_interval: float) -> float:
    """Return the least limit in seconds for which a server that commits nothing never gets a warning.

    The end of the archive is as old as the time between two records and between two rounds of the archiver.
    """
    return 1.5 * (round_interval + _SLACK) / objectives.warn_at


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
