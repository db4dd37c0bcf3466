"""A clock that jumps removes nothing before its time, and a clock that is right for a day removes all that is due.

A history has true time, a wall clock that is off by anything from seconds to years, reboots, and looks of commands. The
first look sees a right clock: nothing could tell it from a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning import clock_guard
from zsnapdb.planning.clock_guard import (
    SETTLED_AFTER_REBOOT,
    SETTLED_AFTER_STEP,
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
    first_lease,
    judge,
    judge_at,
    settled,
)

START = datetime(2026, 11, 20, 10, tzinfo=UTC)
DAY = 86_400.0
LIMITS = Policy(3600, 7 * DAY, 7 * DAY, 0, None, 100)
UNUSED = CloneUse(0, None)


@dataclass
class World:
    """A host with its true time, and what its commands record. Times are in seconds since the first look."""

    true: float = 0.0
    off: float = 0.0
    boot: int = 0
    booted: float = -1000.0
    record: ClockRecord | None = None
    wrong_for: float = field(default=0.0)

    def pass_time(self, seconds: float) -> None:
        self.true += seconds

    def reboot(self, seconds_off: float) -> None:
        self.true += seconds_off
        self.boot, self.booted = self.boot + 1, self.true

    def reading(self) -> ClockReading:
        wall = START + timedelta(seconds=self.true + self.off)
        return ClockReading(wall, f"boot-{self.boot}", self.true - self.booted)

    def look(self) -> RemovalTime:
        self.record = clock_guard.follow(self.record, self.reading())
        return clock_guard.removal_time(self.record)

    def at(self, seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)


@given(st.floats(-900, 900).filter(lambda days: abs(days) > 1), st.floats(1, 7 * DAY))
def test_lease_made_while_clock_was_wrong_ends_when_it_should(days: float, ttl: float) -> None:
    world = World()
    world.look()
    world.pass_time(2 * DAY)
    world.look()
    world.off = days * DAY
    made = world.look().latest
    lease = first_lease(ttl, LIMITS, made)
    world.pass_time(60)
    world.off = 0.0
    right = world.look()
    lease = settled(lease, made, right)
    assert right.is_sure
    assert lease.expires >= world.at(2 * DAY + ttl) - timedelta(seconds=TOLERANCE)
    assert lease.expires <= world.at(2 * DAY + 60 + ttl) + timedelta(seconds=TOLERANCE)
    assert settled(lease, right.latest, right) == lease


@given(st.floats(60, 40 * DAY), st.floats(0, 20_000), st.floats(60, 0.9 * DAY), st.floats(60, 7 * DAY), st.booleans())
def test_lease_made_behind_after_reboot_is_not_shortened(
    seconds_off: float, days_behind: float, lasts: float, ttl: float, is_confirmed: bool
) -> None:
    """The host was off and its clock began behind, such as in 1970. The lease was created before the clock was set."""
    world = World()
    world.look()
    world.pass_time(2 * DAY)
    world.look()
    world.off = -days_behind * DAY
    world.reboot(seconds_off)
    world.look()
    world.pass_time(lasts)
    made = created = world.look().latest
    lease, ends = first_lease(ttl, LIMITS, made), world.true + ttl
    world.pass_time(30)
    world.off = 0.0
    time = world.look()
    if is_confirmed:
        assert world.record is not None
        world.record = clock_guard.confirmed(world.record, world.reading())
    while world.true < ends + 3 * DAY:
        time = world.look()
        after = settled(lease, created, time)
        created, lease = (time.latest, after) if after != lease else (created, lease)
        verdict = judge_at(partial(judge, lease, (), UNUSED, LIMITS), time).verdict
        assert verdict is LeaseVerdict.KEEP or world.true >= ends - 2 * TOLERANCE
        if verdict is LeaseVerdict.REAP:
            break
        world.pass_time(1800)
    else:
        assert lease.expires <= world.at(ends + 2 * DAY + TOLERANCE), "it is only delayed"


@pytest.mark.parametrize("has_stepped", [False, True])
def test_times_recorded_by_a_clock_that_was_behind_are_known(has_stepped: bool) -> None:
    """An earlier small step, which is not accepted yet, hides no reboot."""
    world = World()
    world.look()
    world.pass_time(2 * DAY)
    before = world.look().latest - timedelta(seconds=2)
    if has_stepped:
        world.off = 250.0
        world.look()
        world.off = 0.01
        world.look()
    world.off = -30 * DAY
    world.reboot(2 * DAY)
    world.look()
    world.pass_time(60)
    behind = world.look()
    assert behind.jumped is not None
    cut = behind.jumped.replace(microsecond=0)
    assert [behind.is_unsure(at) for at in (before, cut, behind.latest)] == [False, True, True]
    assert behind.is_age_unknown(before)
    assert not behind.is_wrong(behind.latest)
    world.off = 0.0
    world.look()
    world.pass_time(SETTLED_AFTER_STEP if has_stepped else SETTLED_AFTER_REBOOT)
    right = world.look()
    assert not right.doubt
    assert [right.is_wrong(at) for at in (before, behind.latest, right.latest)] == [False, True, False]
    assert right.is_unsure(behind.latest)
    assert not right.is_age_unknown(before)


@given(st.floats(0, 0.999), st.floats(TOLERANCE + 1, 40 * DAY))
def test_time_recorded_when_clock_is_confirmed_is_right(fraction: float, seconds_off: float) -> None:
    """Recorded times are cut to a second. If such a time was wrong, every sweep would begin the lease again."""
    world = World()
    world.look()
    world.pass_time(2 * DAY + fraction)
    world.look()
    world.reboot(seconds_off)
    world.look()
    assert world.record is not None
    time = clock_guard.removal_time(clock_guard.confirmed(world.record, world.reading()))
    recorded = time.latest.replace(microsecond=0)
    assert (time.is_wrong(recorded), time.is_unsure(recorded)) == (False, False)


@given(st.floats(2 * DAY, 40 * DAY), st.floats(0.1, 0.9))
def test_time_recorded_behind_after_a_clock_that_began_ahead_is_early(seconds_off: float, behind: float) -> None:
    """The clock was years ahead at the boot, then set to a time between the shutdown and the real time."""
    world = World()
    world.look()
    world.pass_time(2 * DAY)
    world.look()
    world.reboot(seconds_off)
    world.off = 3000 * DAY
    world.look()
    world.off = -behind * seconds_off
    recorded = world.look().latest
    world.pass_time(60)
    world.off = 0.0
    world.look()
    assert world.record is not None
    assert clock_guard.removal_time(clock_guard.confirmed(world.record, world.reading())).is_wrong(recorded)


@given(st.floats(0, 59), st.floats(TOLERANCE + 1, 40 * DAY))
def test_time_recorded_right_before_host_was_off_is_right(since_record: float, seconds_off: float) -> None:
    """The clocks are recorded once a minute. The first reading after the reboot is later than all earlier times."""
    world = World()
    world.look()
    world.pass_time(2 * DAY)
    world.look()
    world.pass_time(since_record)
    recorded = world.at(world.true).replace(microsecond=0)
    world.reboot(seconds_off)
    world.look()
    assert world.record is not None
    time = clock_guard.removal_time(clock_guard.confirmed(world.record, world.reading()))
    assert (time.is_wrong(recorded), time.is_unsure(recorded)) == (False, False)


def test_time_in_future_is_not_judged_before_clock_is_known() -> None:
    world = World()
    assert not world.look().is_sure
    world.pass_time(2 * DAY)
    assert world.look().is_sure
    world.off = -DAY
    assert not world.look().is_sure


SPANS = st.floats(0, 40 * DAY) | st.floats(0, 600)
OFFSETS = st.floats(-3 * 365 * DAY, 3 * 365 * DAY) | st.floats(-6 * 3600, 6 * 3600)
# A wrong clock lasts for less than the span after which it is believed, and the host looks before and after it.
GLITCHES = st.tuples(st.just("glitch"), OFFSETS, st.floats(0, SETTLED_AFTER_REBOOT * 0.9), st.booleans())
PASSES = st.tuples(st.just("pass"), SPANS, st.just(0.0), st.booleans())
REBOOTS = st.tuples(st.just("reboot"), SPANS, st.just(0.0), st.booleans())
HISTORIES = st.lists(GLITCHES | PASSES | REBOOTS, max_size=12)


def allowed(world: World) -> float:
    """Return by how much the proven time may be ahead of the true time: what a clock drifts, and one small step."""
    return STEP + SLEW * (world.true - -1000.0)


def check_nothing_goes_early(world: World, time: RemovalTime) -> None:
    assert time.at <= world.at(world.true + allowed(world))
    expires = world.at(world.true + allowed(world) + 1)
    lease = CloneLease(expires)
    assert judge_at(lambda at: judge(lease, (), UNUSED, LIMITS, at), time).verdict is LeaseVerdict.KEEP


@given(HISTORIES)
def test_moments_of_wrong_clock_remove_nothing_early(history: list[tuple[str, float, float, bool]]) -> None:
    world = World()
    world.look()
    for kind, amount, lasts, looks in history:
        if kind == "glitch":
            world.off = amount
            check_nothing_goes_early(world, world.look())
            world.pass_time(lasts)
            check_nothing_goes_early(world, world.look())
            world.off = 0.0
        elif kind == "pass":
            world.pass_time(amount)
        else:
            world.reboot(amount)
        if looks or kind == "glitch":
            check_nothing_goes_early(world, world.look())


@given(HISTORIES, st.lists(st.floats(0, 7 * 3600), min_size=1, max_size=6))
def test_right_clock_for_a_day_removes_all_that_is_due(
    history: list[tuple[str, float, float, bool]], pauses: list[float]
) -> None:
    world = World()
    world.look()
    for kind, amount, lasts, looks in history:
        if kind == "glitch":
            world.off = amount
            world.pass_time(lasts)
        elif kind == "pass":
            world.pass_time(amount)
        else:
            world.reboot(amount)
        if looks:
            world.look()
    world.off = 0.0
    world.look()
    due = CloneLease(world.at(world.true - STEP))
    for pause in pauses:
        world.pass_time(pause)
        world.look()
    world.pass_time(SETTLED_AFTER_STEP)
    time = world.look()
    assert time.wall - time.at <= timedelta(seconds=STEP)
    assert time.doubt == ""
    assert judge_at(lambda at: judge(due, (), UNUSED, LIMITS, at), time).verdict is LeaseVerdict.REAP


def test_jump_ahead_is_a_doubt_until_it_is_taken_back() -> None:
    world = World()
    assert world.look() == RemovalTime(START, START)
    world.off = 40 * DAY
    world.pass_time(1)
    time = world.look()
    assert time.at - world.at(world.true) < timedelta(seconds=0.01)
    assert "40 d ahead of its steady clock" in time.doubt
    world.off = 0.0
    world.pass_time(60)
    time = world.look()
    assert (time.at, time.doubt) == (world.at(world.true), "")


def test_wrong_clock_is_believed_after_a_day_at_its_rate() -> None:
    world = World(off=0.0)
    world.look()
    world.off = 40 * DAY
    world.look()
    world.pass_time(SETTLED_AFTER_STEP - 10)
    assert world.look().doubt
    world.pass_time(11)
    assert world.look() == RemovalTime(world.at(world.true + world.off), world.at(world.true + world.off))


def test_host_that_was_off_for_weeks_waits_an_hour() -> None:
    world = World()
    world.look()
    world.reboot(40 * DAY)
    world.pass_time(30)
    time = world.look()
    assert time.at <= world.at(60)
    assert "since it was restarted" in time.doubt
    world.pass_time(SETTLED_AFTER_REBOOT)
    assert world.look() == RemovalTime(world.at(world.true), world.at(world.true))


def test_step_within_tolerance_is_no_doubt_and_is_followed() -> None:
    world = World()
    world.look()
    world.off = TOLERANCE - 1
    assert world.look().doubt == ""
    world.pass_time(SETTLED_AFTER_STEP)
    world.look()
    world.pass_time(1)
    assert world.look().at == world.at(world.true + world.off)


def test_clock_behind_removes_nothing_and_is_named() -> None:
    world = World()
    world.look()
    world.off = -30 * DAY
    time = world.look()
    assert time.at == time.wall
    assert "30 d behind" in time.doubt
    assert time.latest == START
    for lease in (CloneLease(world.at(-DAY)), CloneLease(world.at(90 * DAY))):
        judged = judge_at(partial(judge, lease, (), UNUSED, LIMITS), time)
        assert judged.verdict is LeaseVerdict.KEEP
        assert "zsnapdb reap --trust-clock" in judged.reason


def test_kept_copy_says_why_and_how_to_confirm() -> None:
    world = World()
    world.look()
    world.off = 40 * DAY
    lease = CloneLease(world.at(8 * 3600))
    judged = judge_at(lambda at: judge(lease, (), UNUSED, LIMITS, at), world.look())
    assert judged.verdict is LeaseVerdict.KEEP
    assert "ahead of its steady clock" in judged.reason
    assert "zsnapdb reap --trust-clock" in judged.reason
