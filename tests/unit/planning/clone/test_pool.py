"""Which clones of a pool wait on, which go, and how many are made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.config.services import PoolSettings
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.pool import (
    LEAST_SPACE,
    HostRoom,
    PoolMark,
    PoolSlot,
    SlotWish,
    filling,
    handout_objection,
    objection,
    too_large,
)
from zsnapdb.planning.clone.space_limits import LEAST

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
TERMS = PoolSettings(size=3, max_age=3600.0)
KEY = "9f86d081884c7d65"
GOOD = PoolSlot(
    "one",
    NOW - timedelta(seconds=60),
    KEY,
    runs=True,
    rules="",
    profile="normal",
    bind_address="127.0.0.1",
    memory=200 << 20,
    space=20 << 20,
)
WISH = SlotWish(TERMS.max_age, GOOD.rules, GOOD.profile, GOOD.bind_address)


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        (GOOD, None),
        (replace(GOOD, runs=False), "does not run"),
        (replace(GOOD, is_complete=False, runs=False), "is being created or destroyed"),
        (replace(GOOD, is_current=False), "production was rewound"),
        (replace(GOOD, data_of=NOW - timedelta(seconds=3601)), "older than pool.max_age"),
        (replace(GOOD, rules="ab"), "not masked by the rules of now"),
        (replace(GOOD, profile="tiny"), "another profile"),
        (replace(GOOD, bind_address="0.0.0.0"), "another profile or address"),
        (replace(GOOD, mark=PoolMark.NOT_GOOD), "refused when it was to be handed out"),
        (replace(GOOD, mark=PoolMark.HANDED_OUT), "refused"),
    ],
)
def test_nobody_gets_a_slot_without_a_server_with_old_data_or_masked_or_made_in_another_way(
    slot: PoolSlot, said: str | None
) -> None:
    reason = objection(slot, WISH, NOW)
    assert (reason is None) if said is None else (reason is not None and said in reason)


@pytest.mark.parametrize(("quota", "is_good"), [(0, True), (GOOD.space + LEAST, True), (GOOD.space + LEAST - 1, False)])
def test_a_slot_of_which_too_little_would_be_left_to_write_is_not_given(quota: int, is_good: bool) -> None:
    assert (objection(GOOD, replace(WISH, quota=quota), NOW) is None) == is_good


def test_who_wants_exactly_some_data_gets_no_other_and_however_old_it_is() -> None:
    wish = replace(WISH, data=KEY)
    assert objection(replace(GOOD, data_of=NOW - timedelta(days=9)), wish, NOW) is None
    for unknown, wanted in (("", wish), ("a", wish), ("", replace(WISH, data=""))):
        assert objection(replace(GOOD, key=unknown), wanted, NOW) == "its data is that of other snapshots"
    for unlike in (replace(GOOD, rules="ab"), replace(GOOD, profile="tiny"), replace(GOOD, runs=False)):
        assert objection(unlike, wish, NOW) is not None


@given(
    ages=st.lists(st.integers(0, 7200), max_size=8),
    size=st.integers(1, 6),
    memory=st.none() | st.integers(600 << 20, 4 << 30),
    free=st.none() | st.integers(0, 8 << 30),
    space=st.none() | st.integers(0, 1 << 30),
    form=st.integers(0, 100 << 20),
)
def test_a_filled_pool_has_its_size_or_says_why_not_and_never_takes_more_than_it_may(
    ages: list[int], size: int, memory: int | None, free: int | None, space: int | None, form: int
) -> None:
    slots = [replace(GOOD, name=str(number), data_of=NOW - timedelta(seconds=age)) for number, age in enumerate(ages)]
    terms, room = PoolSettings(size=size, max_age=3600.0, memory=memory), HostRoom(free, space, form)
    plan = filling(slots, terms, WISH, RemovalTime(NOW, NOW), room, NOW)
    stale = filling(slots, terms, WISH, RemovalTime(NOW, NOW), room, NOW - timedelta(seconds=3601))
    assert (stale.makes, "newest set" in stale.short, stale.drops) == (0, True, plan.drops)
    assert {slot.name for slot in plan.keeps} | {slot.name for slot, _ in plan.drops} == {slot.name for slot in slots}
    assert len(plan.keeps) + len(plan.drops) == len(slots)
    assert (len(plan.keeps) + plan.makes < size) == bool(plan.short)
    assert len(plan.keeps) + plan.makes <= size
    each = GOOD.memory if plan.keeps else 100 << 20
    if plan.makes:
        assert memory is None or (len(plan.keeps) * GOOD.memory + plan.makes * each) <= memory
        assert free is None or 2 * plan.makes * each <= free
        assert space is None or plan.makes * (GOOD.space if plan.keeps else LEAST_SPACE) + form <= space
    dropped = [int(slot.name) for slot, reason in plan.drops if reason.startswith("pool.size")]
    assert all(int(kept.name) > gone for kept in plan.keeps for gone in dropped), "the newest data is kept"


def test_a_slot_that_somebody_protects_stays_and_counts_only_if_it_is_good() -> None:
    refused = replace(GOOD, name="refused", mark=PoolMark.NOT_GOOD, is_protected=True)
    old = replace(GOOD, name="old", data_of=GOOD.data_of - timedelta(seconds=60), is_protected=True)
    plan = filling(
        [refused, old, GOOD],
        PoolSettings(size=1, max_age=3600.0),
        WISH,
        RemovalTime(NOW, NOW),
        HostRoom(None, None),
        NOW,
    )
    assert (plan.keeps, plan.drops, plan.makes) == ((GOOD,), (), 0)


@pytest.mark.parametrize(
    ("waiting", "room", "memory", "said"),
    [
        (0, HostRoom(None, None), None, None),
        (0, HostRoom(None, 3 * LEAST_SPACE), 600 << 20, None),
        (0, HostRoom(None, 3 * LEAST_SPACE - 1), None, "a pool of 3 needs at least 45.0 MiB more of space"),
        (1, HostRoom(None, 2 * LEAST_SPACE), None, None),
        (3, HostRoom(None, 0), None, None),
        (1, HostRoom(None, 2 * LEAST_SPACE, form=1), None, "clones may write 30.0 MiB more"),
        (0, HostRoom(None, None), (600 << 20) - 2, "300.0 MiB of memory, and half of that of the host is 300.0 MiB"),
    ],
)
def test_a_pool_that_can_never_be_full_is_refused_with_the_figures(
    waiting: int, room: HostRoom, memory: int | None, said: str | None
) -> None:
    reason = too_large([GOOD] * waiting, TERMS, room, memory)
    assert (reason is None) if said is None else (reason is not None and said in reason)


def test_slot_from_the_future_goes_once_the_clock_is_sure() -> None:
    ahead = replace(GOOD, data_of=NOW + timedelta(days=400))
    sure = RemovalTime(NOW, NOW)
    terms, room = PoolSettings(size=1, max_age=3600.0), HostRoom(None, None)
    assert "clock was wrong" in filling([ahead], terms, WISH, sure, room, NOW).drops[0][1]
    for unsure in (replace(sure, is_new=True), replace(sure, doubt="it jumped")):
        assert filling([ahead], terms, WISH, unsure, room, NOW).drops == ()


def test_slot_of_unknown_age_is_not_handed_out_and_stays() -> None:
    """The host was off for some time, and its clock is not accepted yet."""
    before = NOW - timedelta(seconds=30)
    time = RemovalTime(NOW - timedelta(days=2), NOW, "the clock is behind", jumped=before, before=before, rebooted=True)
    reason = handout_objection(GOOD, WISH, time)
    assert reason is not None
    assert "the age of its data is not known" in reason
    since = replace(GOOD, data_of=NOW + timedelta(seconds=100))
    assert handout_objection(since, WISH, time) is None
    assert handout_objection(GOOD, WISH, RemovalTime(NOW, NOW)) is None
    assert filling([GOOD], TERMS, WISH, time, HostRoom(None, None), NOW).drops == ()


def test_slot_with_data_of_the_future_is_not_handed_out() -> None:
    """The clock was ahead when its data was taken, and is in doubt now: the age may be anything."""
    ahead = replace(GOOD, data_of=NOW + timedelta(days=3))
    assert handout_objection(ahead, WISH, RemovalTime(NOW, NOW, "a doubt", is_new=True)) is not None


def test_no_slot_is_made_of_a_set_from_the_future() -> None:
    """How old its data is is not known: the clock was ahead when the set was made."""
    newest = NOW + timedelta(days=40)
    plan = filling([], TERMS, WISH, RemovalTime(NOW, NOW), HostRoom(None, None), newest)
    assert (plan.makes, plan.drops) == (0, ())
    assert "in the future" in plan.short
