"""No job begins inside a window, and the end of a window is after now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zsnapdb.config.fleet_jobs import WindowSettings
from zsnapdb.planning.fleet.schedule_plan import closed_until, windows_of

NIGHT = WindowSettings(hosts=("db*",), days=("sat",), start="22:00", end="04:00", timezone="Europe/Berlin")
MORNING = WindowSettings(start="03:00", end="06:30")


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-11-28T20:59", None),
        ("2026-11-28T21:00", "2026-11-29T03:00"),  # a Saturday, 22:00 in Berlin
        ("2026-11-29T02:59", "2026-11-29T03:00"),
        ("2026-11-29T03:00", None),
        ("2026-11-29T21:00", None),  # a Sunday
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_starts(now: str, until: str | None) -> None:
    end = closed_until([NIGHT], datetime.fromisoformat(f"{now}+00:00"))
    assert (f"{end:%Y-%m-%dT%H:%M}" if end is not None else None) == until


def test_windows_that_follow_each_other_are_one() -> None:
    end = closed_until([NIGHT, MORNING], datetime(2026, 11, 28, 22, tzinfo=UTC))
    assert end == datetime(2026, 11, 29, 6, 30, tzinfo=UTC)


def test_a_host_has_the_windows_whose_patterns_name_it() -> None:
    assert windows_of("db1", [NIGHT, MORNING]) == (NIGHT, MORNING)
    assert windows_of("web1", [NIGHT, MORNING]) == (MORNING,)


CLOCK = st.times().map(lambda at: f"{at:%H:%M}")


@given(
    st.lists(st.tuples(CLOCK, CLOCK).filter(lambda both: both[0] != both[1]), max_size=4),
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
)
def test_whatever_the_windows_are_the_wait_is_bounded(times: list[tuple[str, str]], now: datetime) -> None:
    windows = [WindowSettings(start=start, end=end, timezone="Europe/Berlin") for start, end in times]
    end = closed_until(windows, now)
    assert end is None or now < end <= now + timedelta(days=8)


@given(
    st.sampled_from(["01:30", "02:00", "02:20", "02:30", "03:00"]),
    st.sampled_from(["02:10", "02:30", "02:50", "03:00", "03:30", "04:00"]),
    st.sampled_from([datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC)]),
    st.integers(0, 5 * 60),
)
def test_while_a_clock_on_the_wall_is_inside_a_window_it_is_closed_also_when_clocks_change(
    start: str, end: str, night: datetime, minute: int
) -> None:
    assume(start < end)
    window = WindowSettings(start=start, end=end, timezone="Europe/Berlin")
    now = night + timedelta(minutes=minute) - timedelta(hours=1)
    if start <= f"{now.astimezone(ZoneInfo('Europe/Berlin')):%H:%M}" < end:
        assert closed_until([window], now) is not None
