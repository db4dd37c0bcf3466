"""When a transaction was committed, if the time in its events cannot be believed. Pure.

A session sets the time of its events itself (SET timestamp; on MariaDB, and on MySQL before 8.0.1), and an applier
writes the times of its source. The archiver is a witness that no session can mislead: what it did not find at one look
and found at the next was committed between the two. An event's time that contradicts this is not used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_SECOND = 1_000_000
TOLERANCE = 2 * _SECOND
"""Microseconds by which an event's time may be wrong: it is a whole second, and that in which a statement began."""
MOST_STRETCHES = 256
"""The number of stretches in the description of a binlog. Where there are more, neighbours are joined."""


@dataclass(frozen=True)
class ArchiverLook:
    """A moment at which the archiver looked at the binlogs, in microseconds.

    `wall` is the clock of the host (UTC). `steady` is a clock that nobody sets, of this process alone (None: the look
    was that of another process).
    """

    wall: int
    steady: int | None = None


@dataclass(frozen=True)
class Sighting:
    """Transactions were committed after one time and before another, in microseconds UTC. None: not known."""

    earliest: int | None
    latest: int

    def agrees(self, stamp: int) -> bool:
        """Whether a transaction may have been committed at the time in its events."""
        return (self.earliest is None or stamp >= self.earliest - TOLERANCE) and stamp <= self.latest + TOLERANCE

    def joined(self, other: Sighting) -> Sighting:
        """Return the sighting that both are part of."""
        is_open = self.earliest is None or other.earliest is None
        earliest = None if is_open else min(self.earliest or 0, other.earliest or 0)
        return Sighting(earliest, max(self.latest, other.latest))


def sighting_between(before: ArchiverLook | None, after: ArchiverLook) -> Sighting:
    """Return when the transactions were committed that were found at one look, and not at the look before.

    If the clock of the host was set between the looks, that is any time which it showed meanwhile, as far as it is
    known.
    """
    if before is None:
        return Sighting(None, after.wall)
    if before.steady is None or after.steady is None:
        return Sighting(min(before.wall, after.wall), max(before.wall, after.wall))
    passed = after.steady - before.steady
    if abs(after.wall - before.wall - passed) <= TOLERANCE:
        return Sighting(min(before.wall, after.wall), max(before.wall, after.wall))
    return Sighting(
        max(0, min(before.wall, after.wall - passed)),
        max(after.wall, before.wall + passed),
    )


@dataclass(frozen=True)
class Stretch:
    """The transactions from byte `start` to `end` of a binlog have events with other times than that of the commit."""

    start: int
    end: int
    sighting: Sighting

    def joined(self, following: Stretch) -> Stretch:
        """Return the stretch from here to the end of a later one."""
        return Stretch(self.start, following.end, self.sighting.joined(following.sighting))


def with_stretch(stretches: Sequence[Stretch], more: Stretch) -> tuple[Stretch, ...]:
    """Return the stretches with one that follows them, and not more than a description may have."""
    last = stretches[-1] if stretches else None
    if last is not None and last.end == more.start and last.sighting == more.sighting:
        return (*stretches[:-1], last.joined(more))
    if len(stretches) < MOST_STRETCHES:
        return (*stretches, more)
    pairs = [stretches[at : at + 2] for at in range(0, len(stretches), 2)]
    return (*(pair[0].joined(pair[-1]) if len(pair) > 1 else pair[0] for pair in pairs), more)


@dataclass(frozen=True)
class Witness:
    """What an archiver knows about the commit times of a binlog.

    `stretches` are those known before, up to byte `end`; what follows was committed within `sighting` (None: nothing is
    known about it).
    """

    sighting: Sighting | None = None
    stretches: tuple[Stretch, ...] = ()
    end: int = 0

    def contradiction(self, start: int, end: int, stamp: int) -> Sighting | None:
        """Return when the transaction from byte `start` to `end` was committed, if not at the time in its events."""
        if end <= self.end:
            place = bisect_right(self.stretches, start, key=lambda one: one.start)
            before = self.stretches[place - 1] if place else None
            return before.sighting if before is not None and end <= before.end else None
        return None if self.sighting is None or self.sighting.agrees(stamp) else self.sighting


NO_WITNESS = Witness()
