"""The campaign `order` judges by the order in which it made things and by the true time alone."""

from __future__ import annotations

from tests.campaigns.support.order_truth import MadeSet, Policy, Truth, kept, kept_backups, may_go

NOON = 1_900_022_400.0
"""2030-03-17 12:00:00 UTC."""
HOUR = 3600.0


def made(number: int, at: float, *, is_stored: bool = False, base: int | None = None) -> MadeSet:
    """A set whose id is of a clock that goes backwards."""
    set_id = f"{2099 - number}0101T000000Z-0000"
    return MadeSet(number, set_id, (number,), at, 0, {"parent": number, "data": 100 + number}, is_stored, base)


def test_the_newest_is_what_was_made_last_whatever_its_id_says() -> None:
    sets = [made(1, NOON), made(2, NOON + 1), made(3, NOON + 2)]
    assert kept(sets, Policy(last=2), NOON + HOUR) == {2, 3}
    assert kept(sets, Policy(), NOON + HOUR) == {3}


def test_rules_by_time_count_the_true_time() -> None:
    sets = [made(1, NOON), made(2, NOON + HOUR / 2), made(3, NOON + 2 * HOUR), made(4, NOON + 30 * HOUR)]
    assert kept(sets, Policy(within=HOUR), NOON + 30 * HOUR + 60) == {4}
    assert kept(sets, Policy(hourly=2), NOON + 30 * HOUR) == {3, 4}
    assert kept(sets, Policy(daily=2), NOON + 30 * HOUR) == {3, 4}


def test_a_backup_stays_as_long_as_one_builds_on_it() -> None:
    truth = Truth([made(1, NOON, is_stored=True), made(2, NOON, is_stored=True, base=1), made(3, NOON, is_stored=True)])
    assert kept_backups(truth, [1, 2, 3], Policy(last=2), NOON) == {1, 2, 3}
    assert kept_backups(truth, [1, 2, 3], Policy(last=1), NOON) == {3}


def test_a_set_of_a_backup_goes_with_its_backup_and_the_newest_two_stay() -> None:
    here = [made(number, NOON, is_stored=number != 2) for number in (1, 2, 3, 4)]
    assert may_go(here[0], here, [3, 4], Policy(), None, NOON)
    assert not may_go(here[0], here, [1, 3, 4], Policy(), None, NOON)
    assert may_go(here[0], here, [1, 3, 4], Policy(), 2, NOON)
    assert not may_go(here[2], here, [], Policy(), None, NOON)
    assert not may_go(here[1], here, [1, 3, 4], Policy(), None, NOON), "it is the only set that is no backup"
