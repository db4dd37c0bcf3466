"""The commit time of a transaction if the time in its events is unreliable. Pure.

A session can set the time of its events (SET timestamp; on MariaDB, and on MySQL before 8.0.1). An applier writes the
times of its source. No session can mislead the archiver: a transaction that it did not find in one look but in the next
one was committed in between. An event time that contradicts this is not used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_SECOND = 1_000_000
TOLERANCE = 2 * _SECOND
"""Tolerated error of an event time in microseconds: it is in whole seconds, and is the start of the statement."""
MOST_STRETCHES = 256
"""The maximum number of stretches in the description of a binlog. Beyond it, neighbours are joined."""


@dataclass(frozen=True)
class ArchiverObservation:
    """A moment at which the archiver read the binlogs, in microseconds.

    `wall` is the clock of the host (UTC). `steady` is the monotonic clock of this process (None: another process read
    them).
    """

    wall: int
    steady: int | None = None


@dataclass(frozen=True)
class Sighting:
    """The bounds of the commit time of transactions, in microseconds UTC. None: unknown."""

    earliest: int | None
    latest: int

    def agrees(self, stamp: int) -> bool:
        """Return whether the commit can have been at `stamp`, the time in the events."""
        return (self.earliest is None or stamp >= self.earliest - TOLERANCE) and stamp <= self.latest + TOLERANCE

    def joined(self, other: Sighting) -> Sighting:
        """Return the smallest sighting that covers both."""
        is_open = self.earliest is None or other.earliest is None
        earliest = None if is_open else min(self.earliest or 0, other.earliest or 0)
        return Sighting(earliest, max(self.latest, other.latest))


def sighting_between(before: ArchiverObservation | None, after: ArchiverObservation) -> Sighting:
    """Return the commit time bounds of transactions that were found in one look but not in the previous one.

    If the clock of the host was set in between, the bounds cover all times that it is known to have shown.
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
    """A byte range of a binlog whose transactions have event times that differ from the commit time."""

    start: int
    end: int
    sighting: Sighting

    def joined(self, following: Stretch) -> Stretch:
        return Stretch(self.start, following.end, self.sighting.joined(following.sighting))


def with_stretch(stretches: Sequence[Stretch], more: Stretch) -> tuple[Stretch, ...]:
    """Return the stretches with a following one appended, joined if there are more than a description may have."""
    last = stretches[-1] if stretches else None
    if last is not None and last.end == more.start and last.sighting == more.sighting:
        return (*stretches[:-1], last.joined(more))
    if len(stretches) < MOST_STRETCHES:
        return (*stretches, more)
    pairs = [stretches[at : at + 2] for at in range(0, len(stretches), 2)]
    return (*(pair[0].joined(pair[-1]) if len(pair) > 1 else pair[0] for pair in pairs), more)


@dataclass(frozen=True)
class Witness:
    """The knowledge of an archiver about the commit times of a binlog.

    `stretches` are the ones already known up to byte `end`. Later transactions were committed within `sighting` (None:
    unknown).
    """

    sighting: Sighting | None = None
    stretches: tuple[Stretch, ...] = ()
    end: int = 0

    def contradiction(self, start: int, end: int, stamp: int) -> Sighting | None:
        """Return the bounds for the commit of the transaction in these bytes; None if its event time is plausible."""
        if end <= self.end:
            place = bisect_right(self.stretches, start, key=lambda one: one.start)
            before = self.stretches[place - 1] if place else None
            return before.sighting if before is not None and end <= before.end else None
        return None if self.sighting is None or self.sighting.agrees(stamp) else self.sighting


NO_WITNESS = Witness()
