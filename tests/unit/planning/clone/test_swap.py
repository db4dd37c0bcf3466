"""A reset gives a clone's user another clone only if nobody can tell them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.clone.swap import SwapCase, SwapSide, clone_objection, slot_objection

CASE = SwapCase(has_pool=True, address=24000, is_listened_at=True, is_of_set=False, has_commits=False)
SIDE = SwapSide("20261125T040709Z-0174", "rules", "normal", "127.0.0.1")


def test_a_clone_with_a_port_of_its_own_is_swapped_for_one_with_the_same_data() -> None:
    assert clone_objection(CASE) is None
    assert slot_objection(SIDE, SIDE, runs=True) is None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CASE, has_pool=False), "no pool"),
        (replace(CASE, address=None), "keeps no port"),
        (replace(CASE, is_listened_at=False), "HAProxy does not listen at its port 24000"),
        (replace(CASE, is_of_set=True), "one of a set"),
        (replace(CASE, has_commits=True), "commits"),
    ],
)
def test_a_clone_that_others_would_miss_is_not_swapped(case: SwapCase, reason: str) -> None:
    assert reason in str(clone_objection(case))


@pytest.mark.parametrize(
    "slot",
    [
        replace(SIDE, data="20261125T040806Z-c40e"),
        replace(SIDE, rules=""),
        replace(SIDE, profile="tiny"),
        replace(SIDE, bind_address="0.0.0.0"),
    ],
)
def test_a_clone_with_other_data_rules_or_form_takes_no_place(slot: SwapSide) -> None:
    assert slot_objection(SIDE, slot, runs=True) is not None
    assert slot_objection(SIDE, SIDE, runs=False) is not None
