"""Which locks are extended, and what does not fit a configured lock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from zsnapdb.planning.repository.object_lock import (
    DAY,
    BucketFacts,
    LockProblem,
    Rules,
    extended_until,
    lock_findings,
    must_extend,
    needed_until,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LOCKED = BucketFacts(keeps_versions=True, has_locks=True, days=30)


def test_a_lock_that_ends_before_the_newest_backup_of_the_chain_is_extended() -> None:
    needed = needed_until(NOW, 30 * DAY)
    assert must_extend(needed - timedelta(seconds=1), is_held=True, needed=needed)
    assert must_extend(None, is_held=False, needed=needed)
    assert not must_extend(needed, is_held=True, needed=needed)
    assert not must_extend(None, is_held=True, needed=needed), "a legal hold has no end"


def test_hourly_backups_extend_the_locks_of_their_chain_about_twice_in_each_period() -> None:
    period, until, passes = 30 * DAY, NOW, 0
    for hour in range(30 * 24):
        now = NOW + timedelta(hours=hour)
        if must_extend(until, is_held=True, needed=needed_until(now, period)):
            until, passes = extended_until(now, period), passes + 1
        assert until >= needed_until(now, period)
    assert passes == 2


@pytest.mark.parametrize(
    ("bucket", "problem"),
    [
        (BucketFacts(keeps_versions=False, has_locks=False, days=None), LockProblem.NO_VERSIONS),
        (BucketFacts(keeps_versions=True, has_locks=False, days=None), LockProblem.NO_LOCKS),
    ],
)
def test_a_bucket_that_cannot_lock_prevents_backups(bucket: BucketFacts, problem: LockProblem) -> None:
    (found,) = lock_findings(30 * DAY, bucket, None)
    assert (found.problem, found.prevents_backups) == (problem, True)


def test_locks_that_fit_the_bucket_and_the_policy_are_no_finding() -> None:
    assert lock_findings(30 * DAY, LOCKED, Rules(daily=7, monthly=1)) == ()
    assert lock_findings(30 * DAY, LOCKED, Rules(last=3)) == ()
    assert lock_findings(30 * DAY, LOCKED, None) == ()
    unknown = BucketFacts(keeps_versions=None, has_locks=True, days=None)
    assert lock_findings(30 * DAY, unknown, None) == ()


def test_locks_that_outlive_the_policy_or_versions_that_stay_for_ever_are_said() -> None:
    (found,) = lock_findings(30 * DAY, LOCKED, Rules(hourly=48, daily=7))
    assert found.text == "locks last longer than the retention policy keeps backups: 30.0 days, and 7.0 days"
    (found,) = lock_findings(DAY, BucketFacts(keeps_versions=True, has_locks=True, days=None), Rules(daily=7))
    assert (found.problem, found.prevents_backups) == (LockProblem.OLD_VERSIONS_STAY, False)
