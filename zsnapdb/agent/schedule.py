"""Schedules of jobs. Only this module uses APScheduler, which computes the times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from zsnapdb.agent.children import StartChild
from zsnapdb.agent.records import Records
from zsnapdb.base import run_context
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.services import ScheduleSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent_jobs import JUDGING, JobName, RunRecord, cron_times, is_good, run_one_job

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHIFT = timedelta(hours=3)
"""A period that is longer than any change of clocks for daylight saving time."""
_MOST_STEPS = 2000
_LOOKED_BACK = tuple(timedelta(days=days) for days in (1 / 24, 1, 7, 32, 367))


@dataclass(frozen=True)
class Schedule:
    """The schedule of a job. Cron expressions refer to wall-clock times in the time zone `zone`."""

    trigger: OrTrigger | IntervalTrigger
    zone: ZoneInfo
    is_hourly: bool
    """Whether the hour of the cron expression varies.

    If it varies, the job runs in both occurrences of a repeated hour.
    """

    @classmethod
    def of(cls, settings: ScheduleSettings, timezone: str) -> Schedule:
        """Return the schedule. Raises ConfigError if the cron expression is invalid, or never matches."""
        if settings.every is not None:
            trigger = IntervalTrigger(seconds=round(settings.every), start_date=_EPOCH, timezone=UTC)
            return cls(trigger, ZoneInfo("UTC"), is_hourly=True)
        assert settings.cron is not None
        times = cron_times(settings.cron)
        try:
            # The triggers get wall-clock times that are marked as UTC.
            cron = OrTrigger(
                [
                    CronTrigger(
                        minute=times.minute,
                        hour=times.hour,
                        day=days.day,
                        month=times.month,
                        day_of_week=days.weekday,
                        timezone=UTC,
                    )
                    for days in times.days
                ]
            )
        except ValueError as error:
            raise ConfigError(
                f"cron = {settings.cron!r}: {error}", hint='write minute, hour, day, month, weekday: "17 * * * *"'
            ) from error
        schedule = cls(cron, ZoneInfo(timezone), is_hourly=times.hour.startswith("*"))
        if cron.get_next_fire_time(None, _EPOCH) is None:
            raise ConfigError(f"cron = {settings.cron!r} matches no time", hint="check the day and the month")
        return schedule

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time of the schedule after the moment (both UTC); None if the schedule has no later time.

        If a wall-clock time is skipped when clocks are set forward, the job runs right after the skip. If a wall-clock
        time occurs twice when clocks are set back, the job runs once, unless it runs at least every hour.
        """
        if isinstance(self.trigger, IntervalTrigger):
            following = self.trigger.get_next_fire_time(None, moment + timedelta(microseconds=1))
            return following.astimezone(UTC) if following is not None else None
        best: datetime | None = None
        folds = (0, 1) if self.is_hourly else (0,)
        for wall in self._walls(moment.astimezone(self.zone).replace(tzinfo=None, fold=0) - _SHIFT):
            times = [wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in folds]
            best = min((time for time in (*times, best) if time is not None and time > moment), default=None)
            if best is not None and min(times) > best + _SHIFT:
                break
            if best is not None and not self.is_hourly and min(times) > moment:
                break
        return best

    def until(self, moment: datetime) -> datetime | None:
        """Return the last time of the schedule at or before the moment (both UTC).

        The result is None if the schedule has no time in the year before the moment.
        """
        for back in _LOOKED_BACK:
            at, last = moment - back, None
            while (following := self.after(at)) is not None and following <= moment:
                at = last = following
            if last is not None:
                return last
        return None

    def _walls(self, start: datetime) -> Iterator[datetime]:
        """Yield the wall-clock times of the schedule from `start` on."""
        assert isinstance(self.trigger, OrTrigger)
        at = start.replace(tzinfo=UTC)
        for _ in range(_MOST_STEPS):
            following = self.trigger.get_next_fire_time(None, at)
            if following is None:
                return
            yield following.replace(tzinfo=None)
            at = following + timedelta(seconds=1)


_POLL = 0.2


@dataclass(frozen=True)
class RanJob:
    """A finished job, with its exit code and its output file."""

    name: JobName
    exit_code: int
    log: Path


def run_now(settings: Settings, kind: str, instance: str | None, start: StartChild, host: Host) -> RanJob:
    """Run the configured job of the given kind to its end, store its result, and return it.

    Raises ConfigError if no such job is configured, or if several instances have such a job. The job's own locks
    prevent two runs at once: while another run is active, the job exits with code 75. An interrupt stops the job. The
    next scheduled run then does its work.
    """
    job, records = run_one_job(settings, kind, instance), Records(settings.agent.state)
    now = host.now()
    record = RunRecord.begin(records.run(job.name), run_context.new_run_id(), now, now)
    child = start(job.words, records.log(job.name), record.run_id)
    code: int | None = None
    try:
        while (code := child.poll()) is None:
            time.sleep(_POLL)
    finally:
        if code is None:
            child.stop()
        good = is_good(code, warns_with_one=job.name.kind in JUDGING)
        records.set_run(job.name, record.ended(host.now(), code, child.tail(), is_good=good))
    return RanJob(job.name, code, records.log(job.name))
