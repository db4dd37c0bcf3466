"""Which clones of a pool wait on, which go, and how many are made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.pool import PoolSlot, PoolTerms, filling, objection

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
TERMS = PoolTerms(size=3, max_age=3600.0, memory=None)
GOOD = PoolSlot("one", NOW - timedelta(seconds=60), runs=True, rules="", memory=200 << 20)


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        (GOOD, None),
        (replace(GOOD, runs=False), "does not run"),
        (replace(GOOD, data_of=NOW - timedelta(seconds=3601)), "older than pool.max_age"),
        (replace(GOOD, rules="ab"), "not masked by the rules of now"),
    ],
)
def test_nobody_gets_a_slot_without_a_server_with_old_data_or_masked_by_other_rules(
    slot: PoolSlot, said: str | None
) -> None:
    reason = objection(slot, TERMS, "", NOW)
    assert (reason is None) if said is None else (reason is not None and said in reason)


@given(
    ages=st.lists(st.integers(0, 7200), max_size=8),
    size=st.integers(1, 6),
    memory=st.none() | st.integers(0, 4 << 30),
    free=st.none() | st.integers(0, 8 << 30),
)
def test_a_filled_pool_has_its_size_or_says_why_not_and_never_takes_more_memory_than_it_may(
    ages: list[int], size: int, memory: int | None, free: int | None
) -> None:
    slots = [replace(GOOD, name=str(number), data_of=NOW - timedelta(seconds=age)) for number, age in enumerate(ages)]
    terms = PoolTerms(size, 3600.0, memory)
    plan = filling(slots, terms, "", NOW, free, NOW)
    stale = filling(slots, terms, "", NOW, free, NOW - timedelta(seconds=3601))
    assert (stale.makes, "newest set" in stale.short, stale.drops) == (0, True, plan.drops)
    assert {slot.name for slot in plan.keeps} | {slot.name for slot, _ in plan.drops} == {slot.name for slot in slots}
    assert len(plan.keeps) + len(plan.drops) == len(slots)
    assert (len(plan.keeps) + plan.makes < size) == bool(plan.short)
    assert len(plan.keeps) + plan.makes <= size
    each = GOOD.memory if plan.keeps else 100 << 20
    if plan.makes:
        assert memory is None or (len(plan.keeps) * GOOD.memory + plan.makes * each) <= memory
        assert free is None or 2 * plan.makes * each <= free
    dropped = [slot.data_of for slot, reason in plan.drops if reason.startswith("pool.size")]
    assert all(kept.data_of >= gone for kept in plan.keeps for gone in dropped), "the newest data is kept"
