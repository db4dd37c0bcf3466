"""What is latest is decided by transaction groups and sequence numbers; no clock and no stranger changes it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.base.patterns import GREATEST_SEQUENCE
from zsnapdb.planning import creation_order
from zsnapdb.planning.creation_order import STEP, in_order

START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Volume:
    role: str
    guid: int
    from_guid: int | None
    dataset: str = "tank/x"
    send_flags: tuple[str, ...] = ("-L",)


@dataclass(frozen=True)
class Placed:
    backup_id: str
    volumes: tuple[Volume, ...]
    pool_guid: int
    createtxg: int
    sequence: int | None


def placed(
    hours: float, guid: int, base: int | None, *, pool: int = 1, txg: int | None = None, number: int | None = None
) -> Placed:
    name = new_backup_id(START + timedelta(hours=hours), guid)
    return Placed(name, (Volume("data", guid, base),), pool, guid if txg is None else txg, number)


def test_an_id_of_a_clock_that_was_ahead_hides_no_later_backup() -> None:
    links = [placed(1, 1, None), placed(26, 2, 1), placed(3, 3, 2), placed(4, 4, None)]
    assert in_order(reversed(links)) == links


def test_backups_of_several_pools_follow_by_time_and_an_increment_never_precedes_its_base() -> None:
    first, ahead, behind = placed(1, 1, None), placed(99, 2, 1), placed(4, 3, 2)
    elsewhere = placed(2, 11, None, pool=2, txg=5)
    moved = placed(1.5, 12, 3, pool=3, txg=9)
    assert in_order([behind, ahead, moved, elsewhere, first]) == [first, ahead, behind, moved, elsewhere]


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=12), st.randoms(use_true_random=False)
)
def test_of_one_pool_no_clock_changes_the_order(made: list[tuple[float, bool]], shuffle: random.Random) -> None:
    links = [
        placed(number + error, number + 1, number if is_increment and number else None)
        for number, (error, is_increment) in enumerate(made)
    ]
    mixed = list(links)
    shuffle.shuffle(mixed)
    assert in_order(mixed) == links


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12))
def test_backups_of_another_pool_change_nothing_in_the_order_of_a_pool(made: list[tuple[float, int, int]]) -> None:
    links = [
        placed(number + error, number + 1, base or None, txg=txg) for number, (error, base, txg) in enumerate(made)
    ]
    others = [placed(0, 100, None, pool=2), placed(6, 101, 100, pool=2)]
    assert in_order(links) == [link for link in in_order([*links, *others]) if link.pool_guid == 1]


@given(st.lists(st.tuples(st.floats(-9999, 9999), st.sampled_from([1, 2, 3])), min_size=1, max_size=12), st.randoms())
def test_numbers_order_backups_of_several_pools(made: list[tuple[float, int]], shuffle: random.Random) -> None:
    links = [placed(error, at + 1, None, pool=pool, number=at + 1) for at, (error, pool) in enumerate(made)]
    mixed = list(links)
    shuffle.shuffle(mixed)
    assert in_order(mixed) == links


def test_a_backup_that_is_stored_late_is_no_later_than_its_pool_says() -> None:
    first, last, elsewhere = (
        placed(1, 1, None, number=1),
        placed(2, 3, 1, number=2),
        placed(0, 9, None, pool=2, number=4),
    )
    consolidated = placed(1, 1, None, number=3)
    late = placed(9, 2, None, number=5)
    assert in_order([late, elsewhere, consolidated, last, first]) == [first, consolidated, late, last, elsewhere]


def test_backups_without_numbers_come_before_those_with_one_unless_their_pool_says_more() -> None:
    old, new = placed(90, 1, None), placed(1, 5, None, pool=2, number=1)
    downgraded = placed(0, 6, None, pool=2)
    assert in_order([downgraded, new, old]) == [old, new, downgraded]


@pytest.mark.parametrize("number", [1, 5, STEP, GREATEST_SEQUENCE])
@pytest.mark.parametrize("txg", [0, 2, 2**62])
def test_no_stranger_changes_the_order_of_what_is_believed(number: int, txg: int) -> None:
    of_pool = [placed(9, 1, None, number=1), placed(7, 2, None), placed(5, 3, 1, number=2)]
    own = [*of_pool, placed(1, 7, None, pool=2, number=3)]
    stranger = placed(-99, 50, None, txg=txg, number=number)
    ordered = in_order([*own, stranger], {link.backup_id for link in own})
    assert [link for link in ordered if link is not stranger] == own


def test_a_number_that_nobody_can_have_reached_makes_no_backup_the_latest() -> None:
    own = [placed(9, 1, None, number=1), placed(5, 2, 1, number=2)]
    stranger = placed(99, 9, None, pool=7, number=GREATEST_SEQUENCE)
    assert in_order([stranger, *own])[-1] == own[-1]


@given(st.integers(0, 2**40), st.lists(st.none() | st.integers(1, GREATEST_SEQUENCE), max_size=9))
def test_the_next_number_is_greater_than_what_this_host_gave_and_burns_at_most_a_step(
    given_before: int, stored: list[int | None]
) -> None:
    number = creation_order.next_number(given_before, stored)
    assert given_before < number <= given_before + STEP * len(stored) + 1
    reached = [one for one in stored if one is not None and one <= given_before + STEP]
    assert all(number > one for one in reached)


def test_backups_of_a_pool_that_was_replaced_by_an_older_copy_come_before_the_next_one() -> None:
    before, first, second = placed(1, 1, None, txg=10), placed(2, 2, 1, txg=20), placed(3, 3, 2, txg=30)
    after, later = placed(4, 4, 1, txg=15), placed(5, 5, 4, txg=25)
    of_pool = {one.backup_id: one.createtxg for one in (before, first, second)}
    turned = creation_order.with_turn({}, of_pool, 15)
    assert turned == {first.backup_id: 15, second.backup_id: 15}
    made = [before, first, second, after, later]
    assert in_order(reversed(made), None, turned) == made
    assert creation_order.with_turn(turned, of_pool | {after.backup_id: 15}, 25) == turned, "the groups catch up"
    assert set(creation_order.with_turn(turned, of_pool | {after.backup_id: 15}, 12).values()) == {12}, (
        "it happens again"
    )
    elsewhere = placed(6, 6, None, pool=2, txg=3)
    assert [one for one in in_order([elsewhere, *made], None, turned) if one is not elsewhere] == made


def test_sets_of_productions_pool_come_after_those_of_other_pools() -> None:
    sets = [(1, 900), (2, 5), (1, 30), (2, 4)]
    assert creation_order.by_pool(sets, lambda one: one, {2}) == [(1, 30), (1, 900), (2, 4), (2, 5)]
    assert creation_order.by_pool(sets, lambda one: one, {1})[-1] == (1, 900)


def test_the_greatest_number_is_never_passed() -> None:
    assert creation_order.next_number(GREATEST_SEQUENCE, [None]) == GREATEST_SEQUENCE


def test_documents_follow_by_number_and_those_without_one_by_name() -> None:
    documents = [("z", 1), ("a", 2), ("m", None), ("b", None), ("x", 2**50)]
    assert [name for name, _ in creation_order.by_number(documents, lambda one: one[1], lambda one: one[0])] == list(
        "bmxza"
    )


@pytest.mark.parametrize(
    ("ordered", "known", "expected"),
    [
        ("bdf", ["abcde", "fg"], "abcdefg"),
        ("", ["abc"], "abc"),
        ("ab", ["xyz"], "abxyz"),
        ("oab", ["aboz"], "oabz"),
        ("ab", ["ax", "axb"], "axb"),
    ],
)
def test_what_is_missing_keeps_its_place_or_is_the_latest(ordered: str, known: list[str], expected: str) -> None:
    assert "".join(creation_order.with_missing(ordered, *known)) == expected


@dataclass(frozen=True)
class Finding:
    when: datetime
    sequence: int | None
    damage: tuple[str, ...] = ()


def test_a_check_under_a_clock_that_was_ahead_hides_no_later_damage() -> None:
    good, bad = Finding(START + timedelta(days=40), 1), Finding(START, 2, ("a chunk is missing",))
    assert creation_order.latest_finding([bad, good]) is bad
    assert creation_order.latest_finding([replace(good, sequence=2), bad]) is bad
    assert creation_order.latest_finding([replace(good, sequence=None), replace(bad, sequence=None)]) == replace(
        good, sequence=None
    )
