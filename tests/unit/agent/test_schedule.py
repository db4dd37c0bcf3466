"""Times of schedules, also where clocks are set forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from zsnapdb.agent.schedule import Schedule
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.services import ScheduleSettings

BERLIN = ZoneInfo("Europe/Berlin")


def times(cron: str, begin: datetime, end: datetime, zone: str = "Europe/Berlin") -> list[datetime]:
    schedule, moments, at = Schedule.of(ScheduleSettings(cron=cron), zone), [], begin
    while (following := schedule.after(at)) is not None and following <= end:
        moments.append(following)
        at = following
    return moments


def shown(moments: list[datetime]) -> list[str]:
    return [f"{time.astimezone(BERLIN):%d %H:%M %Z}" for time in moments]


def test_a_time_that_is_left_out_in_spring_is_served_right_after() -> None:
    moments = times("30 2 * * *", datetime(2027, 3, 26, 12, tzinfo=UTC), datetime(2027, 3, 30, tzinfo=UTC))
    assert shown(moments) == ["27 02:30 CET", "28 03:30 CEST", "29 02:30 CEST"]


def test_a_time_that_comes_twice_in_autumn_is_served_once() -> None:
    moments = times("30 2 * * *", datetime(2026, 10, 23, 12, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC))
    assert shown(moments) == ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]


@pytest.mark.parametrize(
    ("cron", "step"), [("17 * * * *", 60), ("*/15 * * * *", 15), ("0 */1 * * *", 60)], ids=["hourly", "15 min", "each"]
)
@pytest.mark.parametrize("day", [datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2027, 3, 27, 22, tzinfo=UTC)])
def test_a_job_of_every_hour_never_pauses_longer_when_clocks_are_set(cron: str, step: int, day: datetime) -> None:
    moments = times(cron, day, day + timedelta(hours=8))
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(minutes=step)}


def test_the_next_time_is_always_later_and_none_is_left_out() -> None:
    begin = datetime(2027, 3, 28, 0, 59, 30, tzinfo=UTC)
    moments = times("* * * * *", begin, begin + timedelta(minutes=10))
    assert moments == [begin + timedelta(seconds=30) + timedelta(minutes=number) for number in range(10)]


def test_an_interval_has_the_same_times_after_a_restart() -> None:
    schedule = Schedule.of(ScheduleSettings(every="1h"), "UTC")
    first = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
    assert schedule.after(first - timedelta(minutes=7)) == first
    assert schedule.after(first) == first + timedelta(hours=1)


@pytest.mark.parametrize(("cron", "words"), [("61 * * * *", "61"), ("0 0 31 2 *", "matches no time")])
def test_an_expression_that_cannot_be_used_is_an_error_of_the_configuration(cron: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Schedule.of(ScheduleSettings(cron=cron), "UTC")
