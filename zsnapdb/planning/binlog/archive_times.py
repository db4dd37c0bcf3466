"""Determines the commit times of archived transactions, and the time up to which an archive is complete. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.route_elements import CompleteUntil, EndKind, RouteEnd, RouteFile

INTERVAL = 60.0
"""Seconds between two completeness records of one archiver, unless an objective needs a shorter interval."""
_SECOND = 1_000_000
_SLACK = 5.0
"""The time in seconds that a round and its record may take, with the rounding of the server's time to seconds."""

_AHEAD = 300 * _SECOND
"""The maximum number of microseconds that a commit time may be in the future.

If a commit time is further ahead, a clock counts as wrong.
"""

_FAILOVERS = (EndKind.LOST_IN_FAILOVER, EndKind.UNPROVEN_FAILOVER)


@dataclass(frozen=True)
class CommitHorizon:
    """Proof that all transactions with a commit time up to `until` are before the position `end` in the binlogs.

    `until` is in microseconds UTC, by the clock of the server.
    """

    until: int
    end: BinlogCoordinates


def is_reached(horizon: CommitHorizon, end: BinlogCoordinates | None) -> bool:
    """Return whether an archive that ends at `end` contains everything before the horizon.

    If the base names of the binlogs differ, the result is False.
    """
    if end is None:
        return False
    (base, _, number), (asked, _, least) = end.file.rpartition("."), horizon.end.file.rpartition(".")
    return base == asked and (int(number), end.offset) >= (int(least), horizon.end.offset)


@dataclass(frozen=True)
class LastRecord:
    """An archiver's last record of the time up to which the archive was complete, and the record's age in seconds."""

    until: int
    age: float


def is_worth_recording(last: LastRecord | None, until: int, interval: float, archived: int | None) -> bool:
    """Return whether an archiver should record, after a round, that the archive is complete up to `until`.

    - `last`: None if this archiver has written no record
    - `interval`: seconds between two records
    - `archived`: the time of the last archived commit; up to this time, the archive is complete even without a record

    If the last record is in the future, the server's clock was set back, and the record is replaced immediately. If the
    last commit is in the future, a clock was ahead, and the commit's time is ignored.
    """
    if last is None or until < last.until:
        return True
    is_said = archived is not None and -_AHEAD <= until - archived < interval * _SECOND
    return last.age >= interval and not is_said


def record_interval(objectives: ObjectiveSettings) -> float:
    """Return the number of seconds between two records.

    This is a third of the shortest time after which an archive objective warns. With this interval, an idle server
    always meets its objectives.
    """
    limits = [limit for limit in (objectives.archive_lag, objectives.rpo) if limit is not None]
    return min(INTERVAL, *(limit * objectives.warn_at / 3 for limit in limits)) if limits else INTERVAL


def least_limit(objectives: ObjectiveSettings, round_interval: float) -> float:
    """Return the smallest limit of an objective, in seconds, that never causes a warning for an idle server.

    The end of the archive is never older than one record interval plus one archiver round.
    """
    return 1.5 * (round_interval + _SLACK) / objectives.warn_at


_LEAST_RESERVE = 2.5
"""The minimum time in seconds that a round gets to store its bytes, unless half of the interval is shorter."""


@dataclass(frozen=True)
class RoundTimer:
    """The schedule of an archiver's rounds, which stores each commit within `interval` seconds.

    A commit right after a round waits for the next round. `slowest` is the duration of the slowest recent round in
    seconds. Each round costs requests, so rounds start as late as possible.
    """

    interval: float
    slowest: float = 0.0

    @property
    def pause(self) -> float:
        """The time in seconds between the starts of two rounds: 50 to 80 % of the interval."""
        reserve = max(_LEAST_RESERVE, self.interval / 5, 3 * self.slowest)
        return max(self.interval / 2, self.interval - reserve)

    def after(self, seconds: float) -> RoundTimer:
        """Return the timer after a round of this duration.

        A slow round has less influence after each further round.
        """
        return replace(self, slowest=max(seconds, 0.9 * self.slowest))


def complete_until(files: Sequence[RouteFile], end: RouteEnd, records: Sequence[CompleteUntil]) -> int | None:
    """Return the time up to which a route through the given files is complete; None if no record proves it.

    A record is used only if the route contains the record's position and ends in the record's incarnation. If the route
    does not contain that position, the record is old, or describes bytes that the archive lost. After a failover that
    the archive cannot follow, no record is used, because the record is from the old server, which does not know the
    commits of the new server.
    """
    if not files or end.kind in _FAILOVERS:
        return None
    last = files[-1].incarnation
    own = [record for record in records if record.incarnation == last]
    return max((record.until for record in own if record.end <= _end_of(files, record)), default=None)


def newest_not_ahead(times: Iterable[int], read_at: int | None) -> int | None:
    """Return the latest time that is not after `read_at` (microseconds UTC, None if unknown).

    Later times come from a clock that was ahead, so they say nothing about the age of an archive. If all times are
    later, return the earliest time. If there are no times, return None.
    """
    listed = list(times)
    past = [time if read_at is None else min(time, read_at) for time in listed if not _is_ahead(time, read_at)]
    return max(past) if past else min(listed, default=None)


def _is_ahead(time: int, read_at: int | None) -> bool:
    return read_at is not None and time > read_at + _AHEAD


def _end_of(files: Sequence[RouteFile], record: CompleteUntil) -> int:
    """Return where the record's binlog ends in a route, in bytes; -1 if the route does not contain that binlog.

    The route is searched from its end, because most records are about the newest binlogs.
    """
    for file in reversed(files):
        if file.incarnation != record.incarnation:
            break
        if file.name == record.name:
            return file.end
    return -1


TOLERANCE = 2 * _SECOND
"""The tolerated error of the time in an event, in microseconds.

An event contains the time at which its statement started, in whole seconds.
"""
MOST_STRETCHES = 256
"""The maximum number of stretches (see `Stretch`) in the description of a binlog.

If there are more, neighbours are joined.
"""


@dataclass(frozen=True)
class ArchiverObservation:
    """A moment at which the archiver read the binlogs, in microseconds.

    `wall` is the time of the host's clock (UTC). `steady` is the time of this process's monotonic clock, or None if a
    different process read the binlogs.
    """

    wall: int
    steady: int | None = None


@dataclass(frozen=True)
class Sighting:
    """Bounds of the commit times of transactions, in microseconds UTC. An unknown bound is None."""

    earliest: int | None
    latest: int

    def agrees(self, stamp: int) -> bool:
        """Return whether a transaction may have been committed at `stamp`, which is the time in its events."""
        return (self.earliest is None or stamp >= self.earliest - TOLERANCE) and stamp <= self.latest + TOLERANCE

    def joined(self, other: Sighting) -> Sighting:
        """Return the narrowest bounds that include the bounds of both sightings."""
        is_open = self.earliest is None or other.earliest is None
        earliest = None if is_open else min(self.earliest or 0, other.earliest or 0)
        return Sighting(earliest, max(self.latest, other.latest))


def sighting_between(before: ArchiverObservation | None, after: ArchiverObservation) -> Sighting:
    """Return bounds of the commit times of transactions that the archiver found at `after`, but not at `before`.

    If the clock of the host was set between the two moments, the bounds include all times that the clock is known to
    have shown.
    """
    if before is None:
        return Sighting(None, after.wall)
    if before.steady is None or after.steady is None:
        return Sighting(min(before.wall, after.wall), max(before.wall, after.wall))
    passed = after.steady - before.steady
    if abs(after.wall - before.wall - passed) <= TOLERANCE:
        return Sighting(min(before.wall, after.wall), max(before.wall, after.wall))
    return Sighting(max(0, min(before.wall, after.wall - passed)), max(after.wall, before.wall + passed))


@dataclass(frozen=True)
class Stretch:
    """A byte range of a binlog in which the times in events differ from the commit times of the transactions."""

    start: int
    end: int
    sighting: Sighting

    def joined(self, following: Stretch) -> Stretch:
        return Stretch(self.start, following.end, self.sighting.joined(following.sighting))


def with_stretch(stretches: Sequence[Stretch], more: Stretch) -> tuple[Stretch, ...]:
    """Return the stretches with `more` added. If a description cannot list them all, neighbours are joined."""
    last = stretches[-1] if stretches else None
    if last is not None and last.end == more.start and last.sighting == more.sighting:
        return (*stretches[:-1], last.joined(more))
    if len(stretches) < MOST_STRETCHES:
        return (*stretches, more)
    pairs = [stretches[at : at + 2] for at in range(0, len(stretches), 2)]
    return (*(pair[0].joined(pair[-1]) if len(pair) > 1 else pair[0] for pair in pairs), more)


@dataclass(frozen=True)
class CommitTimeEvidence:
    """The facts that an archiver knows about the commit times in a binlog.

    `stretches` contains the known stretches up to byte `end`. Transactions after this byte were committed within the
    bounds `sighting`, if these are known.
    """

    sighting: Sighting | None = None
    stretches: tuple[Stretch, ...] = ()
    end: int = 0

    def contradiction(self, start: int, end: int, stamp: int) -> Sighting | None:
        """Return the commit time bounds of the transaction in these bytes; None if its event time is plausible."""
        if end <= self.end:
            place = bisect_right(self.stretches, start, key=lambda one: one.start)
            before = self.stretches[place - 1] if place else None
            return before.sighting if before is not None and end <= before.end else None
        return None if self.sighting is None or self.sighting.agrees(stamp) else self.sighting


NO_WITNESS = CommitTimeEvidence()
