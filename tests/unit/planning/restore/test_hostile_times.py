"""Whatever is given as a time, a duration or a size is used, or is an error of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import UsageError
from zsnapdb.base.quantities import parse_duration, parse_size
from zsnapdb.planning.restore.point_forms import AtTime, ago, parse_target

NOW = datetime(2026, 11, 28, tzinfo=UTC)
YEARS = st.sampled_from(("0000", "0001", "1969", "1970", "2026", "9999", "99999", "-001", "٢٠٢٦"))
CLOCKS = st.sampled_from(
    (
        *("-01-01T00:00:00", "-12-31T23:59:59", "-12-31T23:59:60", "-06-30T23:59:60.999999", "-02-30T00:00"),
        *("-03-29T02:30:00", "-10-25T02:30:00", "-13-01T00:00", "-01-01T24:00:00", "-01-01 00:00"),
    )
)
ZONES = st.sampled_from(
    (
        *("", "Z", "z", "UTC", "+00:00", "+24:00", "-24:00", "+23:59", "-23:59", "+2400", "+99:99", "Europe/Berlin"),
        *("local", "now", "../../etc/passwd", "Europe", "CEST", "America/New_York", "x" * 500, "\0"),
    )
)
WORDS = st.sampled_from(
    (
        *("nan", "NaN", "inf", "-inf", "9" * 50, "9" * 5000, "0-1-" + "9" * 40, "now", "today", "gestern", "tomorrow"),
        *("999999999w", "999999999d", "0.000001s", "before-", "before-0-1-2", "before-latest", "\uff11\uff12m", "٣d"),
        "3E11690C-0000-0000-0000-000000000000:1-" + "9" * 30,
    )
)
TEXTS = st.builds(lambda *parts: "".join(parts), YEARS, CLOCKS, ZONES) | WORDS | st.text(max_size=30)


@given(TEXTS)
def test_a_point_in_time_is_used_or_refused(text: str) -> None:
    try:
        target = parse_target(ago(text, NOW))
    except UsageError:
        return
    if isinstance(target, AtTime):
        assert target.moment - timedelta(days=36500 // 2) < target.moment + timedelta(days=36500 // 2)


@given(TEXTS)
def test_a_duration_leads_to_a_moment_or_is_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except UsageError:
        return
    assert NOW - timedelta(seconds=seconds) <= NOW <= NOW + timedelta(seconds=seconds)


@given(TEXTS)
def test_a_size_is_bytes_or_refused(text: str) -> None:
    try:
        assert parse_size(text) >= 0
    except UsageError:
        return


@pytest.mark.parametrize(
    "text",
    [
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"),
        "0001-01-01T00:00 Europe/Berlin",
    ],
)
def test_the_edges_of_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not between the years"):
        parse_target(text)


@pytest.mark.parametrize("text", ["999999999999w", "36501d", "٣d", "1e9s", "nan", "inf"])
def test_a_duration_longer_than_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)
