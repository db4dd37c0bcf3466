"""Checks of the configuration that need its schedules: `zsnapdb config check` refuses what cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise

from zsnapdb.agent.schedule import Schedule
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.settings import InstanceSettings, Settings
from zsnapdb.planning.agent.jobs import JobKind, JobName, jobs_of
from zsnapdb.planning.health.limits import ShortLimit, of_archive, of_schedule

_MOST = 400
"""How many runs of a schedule are looked at, from now on."""


def check_schedules(settings: Settings, now: datetime) -> None:
    """Return if every schedule can be read, and every limit of an objective can be kept.

    ConfigError if not; it names every limit that is too short, with the least one.
    """
    schedules = {
        job.name: (Schedule.of(job.schedule, job.timezone), job.schedule.jitter)
        for job in jobs_of(settings)
        if job.schedule is not None
    }
    problems = [
        f"[instance.{name}.objectives] {problem}"
        for name, instance in settings.instance.items()
        for problem in _short_limits(name, instance, schedules, now)
    ]
    if problems:
        raise ConfigError("; ".join(problems), hint="raise the limit, or do it more often")


def _short_limits(
    name: str, instance: InstanceSettings, schedules: Mapping[JobName, tuple[Schedule, float]], now: datetime
) -> Iterator[ShortLimit]:
    objectives = instance.objectives
    yield from of_archive(objectives, instance.binlog.interval)
    for key, limit, kinds in (
        ("backup_age", objectives.backup_age, (JobKind.BACKUP, JobKind.FULL)),
        ("drill_age", objectives.drill_age, (JobKind.DRILL,)),
        ("verify_age", objectives.verify_age, (JobKind.VERIFY, JobKind.DEEP_VERIFY)),
    ):
        # What the agent does not run may be run by cron or by timers.
        known = {kind: schedules[JobName(name, kind)] for kind in kinds if JobName(name, kind) in schedules}
        if known and limit is not None:
            pauses = {kind: _longest_pause(schedule, now) + jitter for kind, (schedule, jitter) in known.items()}
            often = min(pauses, key=lambda kind: pauses[kind])
            yield from of_schedule(key, limit, f"the agent's job {often.value}", pauses[often])


def _longest_pause(schedule: Schedule, now: datetime) -> float:
    """Return the longest time in seconds between two times of the schedule; 0 if fewer than two follow."""
    times, at = list[datetime](), now
    while len(times) <= _MOST and (following := schedule.after(at)) is not None:
        times.append(following)
        at = following
    return max(((later - earlier).total_seconds() for earlier, later in pairwise(times)), default=0.0)
