"""How long a clone stays: never longer than allowed, never shorter than promised, and what cannot be known is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.planning.clone.lease import (
    FOREVER,
    CloneLease,
    CloneUse,
    Heartbeat,
    LeaseVerdict,
    Policy,
    Quota,
    admit,
    extended,
    first_lease,
    heartbeat_seconds,
    judge,
    protected,
    read_stamp,
    remaining,
    require_within_age,
    stamp,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
POLICY = Policy(ttl=3600, max_ttl=86400, max_protection=2 * 86400, grace=1800, idle=7200, reap_limit=3)
UNUSED = CloneUse(0, None)

moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)).map(
    lambda m: m.replace(microsecond=0)
)
uses = st.builds(CloneUse, st.none() | st.integers(0, 3), st.none() | moments)
leases = st.builds(CloneLease, moments, st.none() | moments)


def test_a_new_lease_is_as_long_as_asked_or_configured() -> None:
    assert first_lease(None, POLICY, NOW).expires == NOW + HOUR
    assert first_lease(7200, POLICY, NOW).expires == NOW + 2 * HOUR


def test_a_lease_above_the_limit_is_refused_with_the_limit_named() -> None:
    with pytest.raises(PreflightError, match=r"is longer than clones\.max_ttl, 1 d"):
        first_lease(86401.0, POLICY, NOW)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_lease_of_no_time_is_wrong_usage(seconds: float) -> None:
    with pytest.raises(UsageError, match="a time to live of"):
        first_lease(seconds, POLICY, NOW)


@given(leases, st.floats(1, 86400), moments)
def test_an_extension_never_shortens_and_never_passes_the_limit(
    lease: CloneLease, seconds: float, now: datetime
) -> None:
    after = extended(lease, seconds, POLICY, now).expires
    assert after >= lease.expires
    assert after <= max(lease.expires, now + timedelta(seconds=POLICY.max_ttl))


def test_protection_has_a_maximum_and_can_be_taken_away() -> None:
    lease = protected(CloneLease(NOW), 3600, POLICY, NOW)
    assert lease.protected_until == NOW + HOUR
    assert protected(lease, 0, POLICY, NOW).protected_until is None
    with pytest.raises(PreflightError, match=r"clones\.max_protection"):
        protected(CloneLease(NOW), 3 * 86400, POLICY, NOW)


@given(moments)
def test_a_stamp_is_read_back(moment: datetime) -> None:
    assert read_stamp(stamp(moment)) == moment


@pytest.mark.parametrize("text", ["", "-", "tomorrow", "2026-11-21"])
def test_an_unreadable_time_counts_as_for_ever(text: str) -> None:
    assert read_stamp(text) == FOREVER
    assert judge(CloneLease(NOW - HOUR, read_stamp(text)), (), UNUSED, POLICY, NOW).verdict is LeaseVerdict.KEEP
    assert judge(CloneLease(read_stamp(text)), (), UNUSED, POLICY, NOW).verdict is LeaseVerdict.KEEP


def test_the_end_of_a_lease_is_told_in_words() -> None:
    assert remaining(CloneLease(NOW + timedelta(hours=26, minutes=5)), NOW) == "in 1 d 2 h"
    assert remaining(CloneLease(NOW - timedelta(minutes=5)), NOW) == "5 min ago"
    assert remaining(CloneLease(FOREVER), NOW) == "at an unreadable time"


def test_an_expired_clone_that_nobody_uses_is_taken() -> None:
    verdict = judge(CloneLease(NOW - HOUR), (), UNUSED, POLICY, NOW)
    assert verdict.verdict is LeaseVerdict.REAP
    assert "expired" in verdict.reason


def test_one_in_use_is_given_grace_and_no_more() -> None:
    assert (
        judge(CloneLease(NOW - timedelta(minutes=29)), (), CloneUse(1, None), POLICY, NOW).verdict is LeaseVerdict.KEEP
    )
    assert (
        judge(CloneLease(NOW - timedelta(minutes=31)), (), CloneUse(1, None), POLICY, NOW).verdict is LeaseVerdict.REAP
    )


def test_an_idle_one_is_taken_only_where_that_is_configured() -> None:
    idle = CloneUse(0, NOW - 3 * HOUR)
    assert judge(CloneLease(NOW + HOUR), (), idle, POLICY, NOW).verdict is LeaseVerdict.REAP
    assert (
        judge(CloneLease(NOW + HOUR), (), idle, Policy(3600, 86400, 86400, 0, None, 3), NOW).verdict
        is LeaseVerdict.KEEP
    )


@given(leases, st.lists(st.just("tank/mine is a clone of it"), max_size=2), uses, moments)
def test_what_is_protected_cannot_be_destroyed_or_cannot_be_asked_is_never_taken(
    lease: CloneLease, obstacles: list[str], use: CloneUse, now: datetime
) -> None:
    verdict = judge(lease, obstacles, use, POLICY, now)
    assert verdict.reason
    if obstacles or lease.is_protected(now) or use.clients is None:
        assert verdict.verdict is LeaseVerdict.KEEP


def test_each_quota_names_its_limit() -> None:
    quota = Quota(per_owner=1, total=2, free_floor=1000)
    admit(quota, "ada", ["bob"], 1000)
    for owners, available, limit in (
        (["ada"], 1000, "clones.per_owner"),
        (["bob", "eve"], 1000, "clones.total"),
        ([], 999, "clones.free_floor"),
    ):
        with pytest.raises(PreflightError, match=limit):
            admit(quota, "ada", owners, available)
    admit(Quota(0, 0, 0), "ada", ["ada"] * 9, 0)


def test_a_clone_whose_holder_stops_to_beat_goes_although_connections_are_left_and_its_lease_is_long() -> None:
    beats = Heartbeat(60, NOW)
    lease = CloneLease(NOW + 24 * HOUR, heartbeat=beats)
    for clients in (None, 0, 3):
        use = CloneUse(clients, None)
        assert judge(lease, (), use, POLICY, NOW + timedelta(seconds=60)).verdict is LeaseVerdict.KEEP
        late = judge(lease, (), use, POLICY, NOW + timedelta(seconds=61))
        assert (late.verdict, late.reason) == (
            LeaseVerdict.REAP,
            f"its last heartbeat was at {stamp(NOW)}, and one is due each 60 s",
        )


def test_a_missed_heartbeat_ends_nothing_that_is_protected_or_cannot_be_destroyed() -> None:
    lease = CloneLease(NOW + HOUR, NOW + HOUR, Heartbeat(60, NOW - HOUR))
    assert judge(lease, (), UNUSED, POLICY, NOW).verdict is LeaseVerdict.KEEP
    assert judge(CloneLease(NOW, None, lease.heartbeat), ("held",), UNUSED, POLICY, NOW).reason == "held"


@given(st.integers(5, 86_400), moments, moments)
def test_a_heartbeat_from_the_future_or_of_an_unreadable_time_is_in_time(
    every: int, last: datetime, now: datetime
) -> None:
    assert Heartbeat(every, last).is_over(now) is (now - last > timedelta(seconds=every))
    assert not Heartbeat(every, FOREVER).is_over(now)


@pytest.mark.parametrize("seconds", [0.0, -5.0, 4.9, 86_401.0, float("nan")])
def test_heartbeats_that_nobody_can_keep_are_wrong_usage(seconds: float) -> None:
    with pytest.raises(UsageError, match="between heartbeats is out of range"):
        heartbeat_seconds(seconds)
    assert heartbeat_seconds(60.5) == 60


def test_extending_and_protecting_in_turn_keeps_data_no_longer_than_its_age() -> None:
    """Each request alone is within the limits; together they would pin the blocks for ever."""
    begun, now = NOW, NOW
    lease = first_lease(None, POLICY, NOW)
    age = 10 * 86400.0
    refused = 0
    for _ in range(300):
        for change in (extended(lease, 86400.0, POLICY, now), protected(lease, 7200.0, POLICY, now)):
            try:
                wanted = replace(lease, expires=change.expires, protected_until=change.protected_until)
                lease = require_within_age(wanted, lease, begun, age)
            except PreflightError:
                refused += 1
        now += HOUR
    assert refused > 100
    last = begun + timedelta(seconds=age)
    assert lease.expires <= last
    assert lease.protected_until is not None
    assert lease.protected_until <= last
    assert require_within_age(protected(lease, 0, POLICY, now), lease, begun, age).protected_until is None


def test_the_age_of_data_whose_time_cannot_be_read_is_not_judged() -> None:
    lease = first_lease(None, POLICY, NOW)
    assert require_within_age(lease, None, FOREVER, 1.0) is lease
