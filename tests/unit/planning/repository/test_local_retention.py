"""Local snapshot sets stay by their rules, and while somebody needs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.config.repository import KeepRules
from zsnapdb.planning.repository.local_snapshot_sets import LocalSet, decide_local

NOW = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)


def local(minutes: int, *users: str, is_complete: bool = True) -> LocalSet:
    """Return a set that is so many minutes old."""
    backup_id = new_backup_id(NOW - timedelta(minutes=minutes), minutes)
    return LocalSet(backup_id, "local", {"data": f"t@zsnapdb-{backup_id}"}, "", 0, users, is_complete)


def kept(sets: list[LocalSet], rules: KeepRules) -> list[bool]:
    decided = decide_local(sorted(sets, key=lambda one: one.backup_id), rules, NOW)
    assert all(decision.reasons for decision in decided)
    by_id = {decision.backup_id: decision.keep for decision in decided}
    return [by_id[one.backup_id] for one in sets]


def test_a_set_stays_by_its_age_or_as_the_newest_of_its_hour() -> None:
    rules = KeepRules(within=600, hourly=3)
    ages = [1, 9, 11, 59, 62, 90, 119, 125, 180, 200]
    assert kept([local(age) for age in ages], rules) == [
        True,
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]


def test_of_sets_of_one_second_the_one_that_was_made_last_stays() -> None:
    """Two ids of one second say nothing of the order; whoever asks gives the order of ZFS."""
    made = [replace(local(1), backup_id=f"20261122T115900Z-{digits}") for digits in ("ffff", "0001")]
    assert [decision.keep for decision in decide_local(made, KeepRules(last=1), NOW)] == [False, True]


def test_a_set_that_somebody_needs_stays() -> None:
    sets = [local(1), local(2), local(3, "clone tank/a"), local(4, is_complete=False)]
    sets.append(local(5, "hold other", is_complete=False))
    assert kept(sets, KeepRules(last=1)) == [True, False, True, False, True]


def test_an_incomplete_set_takes_no_place_of_a_rule() -> None:
    assert kept([local(1, is_complete=False), local(2), local(3)], KeepRules(last=1)) == [True, True, False]


def test_sets_from_before_a_volume_was_added_stay_as_long_as_the_rules_say() -> None:
    earlier = [local(age, is_complete=False) for age in (5, 9, 30)]
    assert kept([local(1), *earlier], KeepRules(within=600)) == [True, True, True, False]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40, unique=True), st.integers(1, 5), st.integers(0, 5))
def test_the_newest_complete_set_always_stays(ages: list[int], last: int, hourly: int) -> None:
    sets = [local(age) for age in sorted(ages)]
    assert kept(sets, KeepRules(last=last, hourly=hourly))[0]
