"""The time up to which an archive is complete, which may be after the last commit. Pure.

The archiver queries the server's time, then the end of its binlog. When the archive has reached that end, it is
complete up to that time. So an idle server can be restored to times after its last commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.history import CompleteUntil, EndKind, RouteEnd, RouteFile

INTERVAL = 60.0
"""Seconds between two records of one archiver, unless an objective needs a shorter interval."""
_SECOND = 1_000_000
_SLACK = 5.0
"""Seconds that a round and its record may take; the server's time is truncated to whole seconds."""

_FAILOVERS = (EndKind.LOST_IN_FAILOVER, EndKind.UNPROVEN_FAILOVER)


@dataclass(frozen=True)
class CommitHorizon:
    """A proven horizon: transactions with a commit time up to `until` are before `end` in the server's binlogs.

    `until` is in microseconds UTC, by the clock of the server.
    """

    until: int
    end: BinlogCoordinates


def is_reached(horizon: CommitHorizon, end: BinlogCoordinates | None) -> bool:
    """Return whether an archive that ends at `end` contains everything before the horizon.

    Binlogs with another base name prove nothing.
    """
    if end is None:
        return False
    (base, _, number), (asked, _, least) = end.file.rpartition("."), horizon.end.file.rpartition(".")
    return base == asked and (int(number), end.offset) >= (int(least), horizon.end.offset)


@dataclass(frozen=True)
class LastRecord:
    """The last record of an archiver: the time up to which the archive was complete, and its age in seconds."""

    until: int
    age: float


def is_worth_recording(last: LastRecord | None, until: int, interval: float, archived: int | None) -> bool:
    """Return whether an archiver writes a record of completeness up to this time after a round.

    - `last`: None if this archiver has written no record
    - `interval`: seconds between two records
    - `archived`: the time of the last archived commit, which already shows how far the archive reaches

    If the server's clock was set back, the last record claims a future time and is replaced immediately.
    """
    if last is None or until < last.until:
        return True
    is_said = archived is not None and until - archived < interval * _SECOND
    return last.age >= interval and not is_said


def record_interval(objectives: ObjectiveSettings) -> float:
    """Return the seconds between two records: a third of the shortest time until an archive objective warns.

    So the objectives of an idle server stay met.
    """
    limits = [limit for limit in (objectives.archive_lag, objectives.rpo) if limit is not None]
    return min(INTERVAL, *(limit * objectives.warn_at / 3 for limit in limits)) if limits else INTERVAL


def least_limit(objectives: ObjectiveSettings, round_interval: float) -> float:
    """Return the smallest limit in seconds that never causes a warning for an idle server.

    The archive's end is at most one record interval plus one archiver round old.
    """
    return 1.5 * (round_interval + _SLACK) / objectives.warn_at


def complete_until(files: Sequence[RouteFile], end: RouteEnd, records: Sequence[CompleteUntil]) -> int | None:
    """Return the time up to which a route through these files is complete; None if no record proves it.

    A record counts if the route passes through its position and ends in its incarnation. A record of another position
    is old, or of bytes that the archive lost. After a failover that the archive cannot follow, the old server does not
    know the commits of the new server.
    """
    if not files or end.kind in _FAILOVERS:
        return None
    last = files[-1].incarnation
    own = [record for record in records if record.incarnation == last]
    return max((record.until for record in own if record.end <= _end_of(files, record)), default=None)


def _end_of(files: Sequence[RouteFile], record: CompleteUntil) -> int:
    """Return the end of the record's binlog in a route, in bytes; -1 if the route does not pass it.

    The search begins at the end of the route: records are of the newest binlogs.
    """
    for file in reversed(files):
        if file.incarnation != record.incarnation:
            break
        if file.name == record.name:
            return file.end
    return -1
