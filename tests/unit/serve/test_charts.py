"""A timeline shows the same with few bars as with one for each span."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from zsnapdb.serve.charts import WIDTH, TimeSpan, timeline

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def span(begin: float, length: float, *, is_gap: bool) -> TimeSpan:
    start = NOW - timedelta(hours=begin)
    return TimeSpan(start, start + timedelta(hours=min(length, begin)), is_gap)


spans = st.lists(st.builds(span, st.floats(0, 1000), st.floats(0, 200), is_gap=st.booleans()), min_size=1, max_size=30)


@given(spans, st.floats(0, WIDTH))
def test_every_place_has_the_colour_that_the_spans_of_it_have(shown: list[TimeSpan], place: float) -> None:
    """A gap hides what is below it, and a bar of each span alone is what is joined."""
    whole = timeline(shown, [], NOW)
    assert whole is not None
    alone = [bar for one in shown for bar in _alone(one, shown)]
    # At an edge the last digit of a sum decides.
    assume(all(abs(place - edge) > 1e-6 for bar in alone for edge in bar[:2]))
    for is_gap in (False, True):
        covered = [one for one in whole.bars if one.is_gap is is_gap and one.x <= place <= one.x + one.width]
        meant = [one for one in alone if one[2] is is_gap and one[0] <= place <= one[1]]
        assert bool(covered) == bool(meant)
    kinds = [one.is_gap for one in whole.bars]
    assert kinds == sorted(kinds), "gaps come last"


def _alone(one: TimeSpan, shown: list[TimeSpan]) -> list[tuple[float, float, bool]]:
    """Return where the span begins and ends in the picture of all."""
    begin, end = min(each.begin for each in shown), max(NOW, *(each.end for each in shown))
    seconds = max((end - begin).total_seconds(), 1.0)
    first, last = (WIDTH * (time - begin).total_seconds() / seconds for time in (one.begin, one.end))
    width = max(last - first, 3.0)
    x = min(first, WIDTH - width)
    return [(x, x + width, one.is_gap)]


def test_ten_thousand_spans_are_few_bars() -> None:
    shown = [span(hours, 0, is_gap=False) for hours in range(1, 10_001)]
    made = timeline(shown, [], NOW)
    assert made is not None
    assert len(made.bars) == 1
