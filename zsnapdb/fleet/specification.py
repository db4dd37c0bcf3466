"""The times of a schedule in the engine's format.

The engine compares times literally with the local clock of a zone (Temporal's API, `ScheduleSpec.timezone_name`). If
the clock is set forward, the skipped times do not occur on that day. If the clock is set back, Temporal 1.32 skips
times of the repeated hour: `30 * * * *` in Europe/Berlin results in 23:30, 0:30, 2:30 UTC. So the agent's times around
such changes are added one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from temporalio.client import ScheduleIntervalSpec, ScheduleSpec

from zsnapdb.agent.schedule import Schedule
from zsnapdb.config.fleet_jobs import FleetScheduleSettings
from zsnapdb.config.tables import ScheduleSettings
from zsnapdb.planning.agent_jobs import cron_times

YEARS = 10
"""Number of years for which times around changes of the clock are added."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
_ONCE = timedelta(days=2 * YEARS * 365)
"""An interval that occurs only once in the period. The engine has no other form for a single time."""


def specification(schedule: FleetScheduleSettings, now: datetime) -> ScheduleSpec:
    """Return the times of the schedule from `now` (UTC) on. They equal the agent's times."""
    jitter = timedelta(seconds=schedule.jitter) if schedule.jitter else None
    if schedule.every is not None:
        return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=schedule.every))], jitter=jitter)
    assert schedule.cron is not None
    times = cron_times(schedule.cron)
    # In cron, either the day of the month or the weekday must match. The engine requires both.
    lines = [f"{times.minute} {times.hour} {days.day} {times.month} {days.weekday}" for days in times.days]
    changes = _around_changes(schedule.cron, schedule.timezone, now.year)
    return ScheduleSpec(
        cron_expressions=lines,
        intervals=[ScheduleIntervalSpec(every=_ONCE, offset=(at - _EPOCH) % _ONCE) for at in changes],
        jitter=jitter,
        time_zone_name=schedule.timezone,
    )


@functools.lru_cache(maxsize=256)
def _around_changes(cron: str, timezone: str, year: int) -> tuple[datetime, ...]:
    """Return the agent's times (UTC) from an hour before to two hours after each change of the clock."""
    schedule, found = Schedule.of(ScheduleSettings(cron=cron), timezone), []
    for change in _changes(ZoneInfo(timezone), year):
        at, end = change - _HOUR - _MINUTE, change + 2 * _HOUR
        while (following := schedule.after(at)) is not None and following <= end:
            at = following
            found.append(at)
    return tuple(found)


def _changes(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    """Yield the times (UTC) at which the clock of the zone is set forward or back in these years."""
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + YEARS, 1, 1, tzinfo=UTC)
    while day < end:
        if day.astimezone(zone).utcoffset() != (day + _DAY).astimezone(zone).utcoffset():
            minutes = (day + number * _MINUTE for number in range(1, round(_DAY / _MINUTE) + 1))
            yield next(at for at in minutes if at.astimezone(zone).utcoffset() != day.astimezone(zone).utcoffset())
        day += _DAY
