"""The level follows the bottleneck: busy processors lower it, a slow network or source raises it, and it settles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.backup.send_form import HIGHEST, LOWEST, next_level


def test_where_the_processors_are_busy_it_gets_cheaper() -> None:
    assert next_level(5, busy=2.0, elapsed=1.0, processors=2) == 4
    assert next_level(LOWEST, busy=2.0, elapsed=1.0, processors=2) == LOWEST


def test_where_the_network_is_waited_for_it_gets_dearer() -> None:
    assert next_level(5, busy=0.5, elapsed=1.0, processors=2) == 6
    assert next_level(HIGHEST, busy=0.0, elapsed=1.0, processors=2) == HIGHEST


def test_in_between_it_stays() -> None:
    assert next_level(5, busy=1.4, elapsed=1.0, processors=2) == 5


@given(
    st.floats(0.001, 1.0), st.floats(0.0, 30.0), st.integers(1, 64), st.integers(1, 64), st.integers(LOWEST, HIGHEST)
)
def test_it_comes_to_rest_and_stays_within_its_bounds(
    cost: float, network: float, workers: int, processors: int, level: int
) -> None:
    """A worker takes `cost` seconds at level 1, a third more for each further level, and `network` seconds to store."""
    seen = []
    for _ in range(60):
        working = cost * 1.33 ** (level - 1)
        level = next_level(level, busy=workers * min(working, 1e6), elapsed=working + network, processors=processors)
        assert LOWEST <= level <= HIGHEST
        seen.append(level)
    assert len(set(seen[-10:])) == 1
