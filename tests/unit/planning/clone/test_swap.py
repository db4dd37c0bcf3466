"""A reset gives a clone's user another clone only if nobody can tell them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        (replace(CASE, waiting_bytes=6, own_bytes=5, quota=10), "must first remove the data of earlier swaps"),
    ],
)
def test_a_clone_that_others_would_miss_is_not_swapped(case: SwapCase, reason: str) -> None:
    assert reason in str(clone_objection(case))


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 20))
def test_swaps_leave_at_most_one_quota_of_replaced_data(written: list[int], quota: int) -> None:
    """A clone that has written its whole quota can be swapped once, until the replaced data is removed."""
    waiting = 0
    for own in (min(size, quota) for size in written):
        if clone_objection(replace(CASE, waiting_bytes=waiting, own_bytes=own, quota=quota)) is None:
            waiting += own
    assert waiting <= quota
    assert clone_objection(replace(CASE, own_bytes=quota, quota=quota)) is None
    assert clone_objection(replace(CASE, waiting_bytes=quota, own_bytes=quota)) is None
