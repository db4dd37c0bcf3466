"""Clones never get the space that must stay free for production."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.room import LEAST, clone_quota, form_quota, home_quota

BYTES = st.integers(0, 1 << 50)


@given(configured=BYTES, available=BYTES, floor=BYTES)
def test_a_clone_gets_at_most_what_is_configured_and_what_is_free_above_the_floor(
    configured: int, available: int, floor: int
) -> None:
    quota = clone_quota(configured, available, floor)
    assert quota <= configured
    assert quota <= max(LEAST, available - floor)
    assert (quota == 0) == (configured == 0)


@given(used=BYTES, available=BYTES, floor=BYTES)
def test_all_clones_together_leave_the_floor(used: int, available: int, floor: int) -> None:
    more = home_quota(used, available, floor) - used
    assert more >= LEAST
    assert more == LEAST or available - more == floor


@given(configured=BYTES, available=BYTES, floor=BYTES)
def test_a_form_that_is_made_for_a_clone_leaves_the_floor_also_where_clones_have_no_quota(
    configured: int, available: int, floor: int
) -> None:
    quota = form_quota(configured, available, floor)
    assert 0 < quota <= max(LEAST, available - floor)
    assert quota <= configured or configured == 0
