"""Start times of a schedule specification in the engine.

Times of a cron expression are matched literally with the clock of their zone: a time that the clock skips does not
occur (Temporal's API, `ScheduleSpec.timezone_name`). A time that the clock repeats occurs in some cases; here it never
does. Intervals count from 1970 on. `tests/unit/fleet/test_engine.py` compares this with a real engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from temporalio.client import ScheduleSpec

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def literal_times(
    spec: ScheduleSpec, after: datetime, until: datetime, step: timedelta = _MINUTE
) -> Iterator[datetime]:
    """Yield the times (UTC) of the specification after one time, up to another. All times are multiples of steps."""
    zone = ZoneInfo(spec.time_zone_name or "UTC")
    at = after.replace(second=0, microsecond=0)
    while (at := at + step) <= until:
        local = at.astimezone(zone)
        if any((at - _EPOCH - (one.offset or timedelta())) % one.every == timedelta() for one in spec.intervals) or (
            not _comes_twice(local) and any(_matches_cron(line, local) for line in spec.cron_expressions)
        ):
            yield at


def _comes_twice(local: datetime) -> bool:
    return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def _matches_cron(line: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = line.split()
    numbers = ((minute, local.minute), (hour, local.hour), (day, local.day), (month, local.month))
    return all(_matches_field(field, number) for field, number in numbers) and (
        weekday == "*" or _DAYS[local.weekday()] in weekday.split(",")
    )


def _matches_field(field: str, number: int) -> bool:
    """Whether a field of the kinds in tests matches: `*`, `*/N`, or numbers with commas."""
    if field.startswith("*"):
        return number % int(field[2:] or 1) == 0
    return number in {int(one) for one in field.split(",")}
