"""A reset gives a clone's user another clone only if nobody can tell them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.planning.clone.row_reset import SwapCase, clone_objection

CASE = SwapCase(has_pool=True, address=24000, is_listened_at=True, is_of_set=False, has_commits=False)


def test_a_clone_with_a_port_of_its_own_can_be_swapped() -> None:
    assert clone_objection(CASE) is None


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
