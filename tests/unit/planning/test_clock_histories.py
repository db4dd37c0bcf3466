"""Leases under random clocks: none ends early, and all end after a person confirms the clock.

A history has jumps of the wall clock of up to ten years, reboots, commands, new and changed leases, confirmations of a
right clock, and a record of the clocks that is lost or replaced with an older copy. No clock is wrong for long enough
to be accepted. After a loss of the record nothing shows which recorded times were too early.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from zsnapdb.planning import clock_guard
from zsnapdb.planning.clock_guard import (
    SETTLED_AFTER_REBOOT,
    SLEW,
    STEP,
    TOLERANCE,
    ClockReading,
    ClockRecord,
    RemovalTime,
)
from zsnapdb.planning.clone.lease import (
    CloneLease,
    CloneUse,
    LeaseVerdict,
    Policy,
    changed,
    extended,
    first_lease,
    judge,
    judge_at,
    settled,
)

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
DAY = 86_400.0
TTL = 8 * 3600.0
LIMITS = Policy(TTL, 30 * DAY, 30 * DAY, 0, None, 100)


def cut(moment: datetime) -> datetime:
    """Return the time as a property stores it."""
    return moment.replace(microsecond=0)


@dataclass
class Held:
    """A lease as it is recorded, with its end by the true time, in seconds since the start."""

    created: datetime
    lease: CloneLease
    due: float
    is_gone: bool = False


@dataclass
class Site:
    """A host with true time, wall clock, boots, and the record of its clocks. Times are in seconds since the start."""

    true: float = 0.0
    error: float = 0.0
    boot: int = 0
    booted: float = -1000.0
    record: ClockRecord | None = None
    old: list[ClockRecord] = field(default_factory=list)
    leases: list[Held] = field(default_factory=list)
    steps: int = 0
    is_lost: bool = False

    def reading(self) -> ClockReading:
        return ClockReading(START + timedelta(seconds=self.true + self.error), str(self.boot), self.true - self.booted)

    def look(self) -> RemovalTime:
        """Let a command read the clocks."""
        reading = self.reading()
        record = clock_guard.follow(self.record, reading)
        if self.record is None or clock_guard.is_due(self.record, record, reading):
            self.old += [] if self.record is None else [self.record]
            self.record = record
        return clock_guard.removal_time(record)

    def confirm(self) -> None:
        self.record = clock_guard.confirmed(self.record, self.reading())

    def create(self) -> None:
        now = self.look().latest
        lease = first_lease(TTL, LIMITS, now)
        self.leases.append(Held(cut(now), replace(lease, expires=cut(lease.expires)), self.true + TTL))

    def change(self, held: Held, seconds: float) -> None:
        time = self.look()
        before = self.settle(held, time)
        after = extended(before, seconds, LIMITS, time.latest)
        after = changed(before, replace(after, expires=cut(after.expires)), time)
        assert after.changed is not None
        held.lease = replace(after, changed=replace(after.changed, at=cut(after.changed.at)))
        held.due = max(held.due, self.true + seconds)

    def settle(self, held: Held, time: RemovalTime) -> CloneLease:
        now = settled(held.lease, held.created, time)
        if now != held.lease:
            held.lease = replace(now, expires=cut(now.expires))
            if time.is_wrong(held.created):
                held.created = cut(time.latest)
        return held.lease

    def sweep(self) -> None:
        """Let a sweep remove expired leases. None may be removed early, unless the record of the clocks was lost."""
        time = self.look()
        for held in [one for one in self.leases if not one.is_gone]:
            lease = self.settle(held, time)
            if judge_at(partial(judge, lease, (), CloneUse(0, None), LIMITS), time).verdict is LeaseVerdict.REAP:
                held.is_gone = True
                assert self.is_lost or self.true >= held.due - self.allowed, (held, self.true, time)

    @property
    def allowed(self) -> float:
        """The seconds by which the clocks may differ without a doubt."""
        return TOLERANCE + (2 + self.steps) * STEP + 2 + SLEW * (self.true + 1000)


YEARS = st.floats(-10 * 365 * DAY, 10 * 365 * DAY)
ERRORS = YEARS | st.floats(-2 * DAY, 2 * DAY) | st.floats(-400, 400)
SHORT = st.floats(0, SETTLED_AFTER_REBOOT * 0.3)
EVENTS = st.one_of(
    st.tuples(st.just("jump"), ERRORS),
    st.tuples(st.just("right"), st.just(0.0)),
    st.tuples(st.just("pass"), SHORT),
    st.tuples(st.just("long"), st.floats(0, 5 * DAY)),
    st.tuples(st.just("reboot"), st.floats(0, 5 * DAY) | st.floats(0, 600)),
    st.tuples(st.just("look"), st.just(0.0)),
    st.tuples(st.just("sweep"), st.just(0.0)),
    st.tuples(st.just("create"), st.just(0.0)),
    st.tuples(st.just("extend"), st.floats(1, 20 * DAY)),
    st.tuples(st.just("confirm"), st.just(0.0)),
    st.tuples(st.just("old"), st.floats(0, 0.99)),
    st.tuples(st.just("lose"), st.just(0.0)),
)


def play(site: Site, events: list[tuple[str, float]]) -> None:
    """Play the events. A wrong clock is set right before it is accepted."""
    wrong = 0.0
    site.look()
    for name, number in events:
        site.steps += 1
        if name == "jump":
            site.error = number
        elif name == "right":
            site.error, wrong = 0.0, 0.0
        elif name in ("pass", "long"):
            if site.error and wrong + number >= SETTLED_AFTER_REBOOT * 0.9:
                site.error, wrong = 0.0, 0.0
                site.look()
            wrong += number if site.error else 0.0
            site.true += number
        elif name == "reboot":
            if site.error and site.record is not None and site.record.jump is None:
                # A clock that stood still while the host was off seems right. A second reboot would hide that.
                site.error, wrong = 0.0, 0.0
                site.look()
            site.true += number
            site.boot, site.booted = site.boot + 1, site.true
        elif name == "look":
            site.look()
        elif name == "sweep":
            site.sweep()
        elif name == "create":
            site.create()
        elif name == "extend" and site.leases:
            site.change(site.leases[-1], number)
        elif name == "confirm" and not site.error:
            site.confirm()
        elif name == "old" and site.old:
            site.record = site.old[int(number * len(site.old))]
        elif name == "lose" and not site.error:
            site.record, site.is_lost = None, True
            site.look()


AHEAD = 3650 * DAY


@given(st.lists(EVENTS, max_size=25))
@example([("create", 0.0), ("jump", AHEAD), ("pass", 461.0), ("extend", 9075.0)])
@example([("create", 0.0), ("jump", AHEAD), ("extend", 9075.0), ("right", 0.0), ("extend", 1.0)])
@example([("create", 0.0), ("pass", 900.0), ("reboot", 900.0), ("jump", -AHEAD), ("extend", 2 * TTL)])
def test_lease_ends_in_time_by_any_clock(events: list[tuple[str, float]]) -> None:
    site = Site()
    play(site, events)
    site.error = 0.0
    site.confirm()
    site.sweep()
    # A lease that may have been recorded by a wrong clock begins again.
    due = site.true + max([TTL, *(seconds for name, seconds in events if name == "extend")])
    site.true = due + site.allowed + TOLERANCE
    site.sweep()
    assert all(held.is_gone for held in site.leases), (site, due)
