"""When a schedule begins its jobs, as the engine is told it.

The engine matches times with the clock of a zone literally (Temporal's API, `ScheduleSpec.timezone_name`): a time that
the clock leaves out when it is set forward does not come on that day. When the clock is set back, Temporal 1.32 leaves
out times of the hour that is repeated (`30 * * * *` in Europe/Berlin: 23:30, 0:30, 2:30 UTC). So the engine is told of
what the agent serves around these changes time by time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from temporalio.client import ScheduleIntervalSpec, ScheduleSpec

from zsnapdb.agent.schedule import Schedule
from zsnapdb.config.agent import ScheduleSettings
from zsnapdb.config.fleet_jobs import FleetScheduleSettings
from zsnapdb.planning.agent.jobs import cron_times

YEARS = 10
"""For how many years the engine is told of changes of the clock."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
_ONCE = timedelta(days=2 * YEARS * 365)
"""An interval that comes once while it counts. The engine knows no other way to say a time of no clock."""


def specification(schedule: FleetScheduleSettings, now: datetime) -> ScheduleSpec:
    """Return the times of the schedule: all that the agent would serve, from now (UTC) on."""
    jitter = timedelta(seconds=schedule.jitter) if schedule.jitter else None
    if schedule.every is not None:
        return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=schedule.every))], jitter=jitter)
    assert schedule.cron is not None
    times = cron_times(schedule.cron)
    # Of a day of the month and a weekday each suffices for cron; the engine wants both.
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
    """Return the times (UTC) that the agent serves from an hour before a change of the clock to two hours after it."""
    schedule, found = Schedule.of(ScheduleSettings(cron=cron), timezone), []
    for change in _changes(ZoneInfo(timezone), year):
        at, end = change - _HOUR - _MINUTE, change + 2 * _HOUR
        while (following := schedule.after(at)) is not None and following <= end:
            at = following
            found.append(at)
    return tuple(found)


def _changes(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    """Yield when (UTC) the clock of the zone is set forward or back in these years."""
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + YEARS, 1, 1, tzinfo=UTC)
    while day < end:
        if day.astimezone(zone).utcoffset() != (day + _DAY).astimezone(zone).utcoffset():
            minutes = (day + number * _MINUTE for number in range(1, round(_DAY / _MINUTE) + 1))
            yield next(at for at in minutes if at.astimezone(zone).utcoffset() != day.astimezone(zone).utcoffset())
        day += _DAY
