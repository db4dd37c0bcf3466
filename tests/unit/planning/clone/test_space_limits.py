"""Clones never get the space that must stay free for production."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.clone.space_limits import (
    LEAST,
    clone_quota,
    form_quota,
    home_quota,
    objection_to_set,
    objection_to_sets_of,
    received_quota,
)

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


@given(
    floor=st.integers(1, 100 * LEAST),
    free=st.integers(0, 200 * LEAST),
    production=st.lists(st.integers(-10 * LEAST, 10 * LEAST), min_size=1, max_size=12),
    reserved=st.lists(st.sampled_from((0, 0, LEAST, 50 * LEAST)), min_size=12, max_size=12),
)
def test_repeated_guards_give_clones_no_space_below_the_floor(
    floor: int, free: int, production: list[int], reserved: list[int]
) -> None:
    """Clones write as much as their quota allows, and a sweep sets the quota again, however often."""
    used, quota, below = 0, 0, 0
    for change, form in zip(production, reserved, strict=False):
        free = max(0, free + change)
        before = min(free, floor)
        quota = home_quota(used, free - form, floor, quota)
        written = max(0, min(quota - used, free))
        used, free = used + written, free - written
        below = below + before - min(free, floor) if before < floor else before - min(free, floor)
        assert below <= LEAST


@given(configured=BYTES, available=BYTES, floor=BYTES)
def test_a_form_that_is_made_for_a_clone_leaves_the_floor_also_where_clones_have_no_quota(
    configured: int, available: int, floor: int
) -> None:
    quota = form_quota(configured, available, floor)
    assert 0 < quota <= max(LEAST, available - floor)
    assert quota <= configured or configured == 0


@given(sizes=st.lists(BYTES, max_size=8), free=BYTES, floor=BYTES)
def test_received_sets_leave_the_floor_however_many_are_promised(sizes: list[int], free: int, floor: int) -> None:
    left = free
    for plain in sizes:
        needed = received_quota(plain)
        assert needed > plain
        if objection_to_set(needed, left, floor) is None:
            left -= needed
    assert left == free or left >= floor


@given(sizes=st.lists(BYTES, max_size=8), most=st.integers(1, 1 << 50))
def test_sets_of_a_subject_stay_within_the_limit_and_a_refusal_names_them(sizes: list[int], most: int) -> None:
    kept: dict[str, int] = {}
    for number, needed in enumerate(sizes):
        reason = objection_to_sets_of("anna", kept, needed, most)
        if reason is None:
            kept[f"set-{number}"] = needed
        else:
            assert "clones.received_per_owner" in reason
            assert all(name in reason for name in kept)
    assert sum(kept.values()) <= most


def test_streams_that_the_pool_compresses_need_less() -> None:
    assert received_quota(300, 3.0) - LEAST == 112
    assert received_quota(300, 0.5) == received_quota(300)
