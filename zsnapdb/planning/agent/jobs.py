"""The jobs that a configuration gives the agent, with the command and the times of each. Pure.

Cron expressions have the meaning of crontab(5). Cron's weekdays are 0 to 7, where 0 and 7 are Sunday; a scheduler may
count from Monday. So weekdays are given to it as names. If day of the month and weekday are both restricted, one of
them suffices; if one begins with `*`, both must match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.errors import ConfigError
from zsnapdb.config.agent import ScheduleSettings
from zsnapdb.config.settings import Settings

_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_SUNDAY = 7
"""Sunday at the end of a range."""
_EVERY = re.compile(r"\*(?:/([0-9]{1,3}))?")
_SOME = re.compile(r"([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3})(?:/([0-9]{1,3}))?)?")


@dataclass(frozen=True)
class CronDays:
    """Days of the month and weekdays of a schedule, which must both match. Weekdays are names or `*`."""

    day: str
    weekday: str


@dataclass(frozen=True)
class CronTimes:
    """The times of a job: these minutes, hours and months, on the days that match one of `days`."""

    minute: str
    hour: str
    month: str
    days: tuple[CronDays, ...]


def cron_times(expression: str) -> CronTimes:
    """Return the times of a cron expression of five fields.

    Raises ConfigError if the weekdays are invalid; the other fields are not checked.
    """
    minute, hour, day, month, weekday = expression.split()
    try:
        named = _weekdays(weekday.lower())
    except ValueError as error:
        raise ConfigError(
            f"cron = {expression!r}: {error}",
            hint="a weekday is 0 to 7 (0 and 7 are Sunday) or sun to sat; write 6, 1-5, mon-fri, 1,3 or */2",
        ) from error
    if day.startswith("*") or weekday.startswith("*"):
        return CronTimes(minute, hour, month, (CronDays(day, named),))
    return CronTimes(minute, hour, month, (CronDays(day, "*"), CronDays("*", named)))


def _weekdays(field: str) -> str:
    """Return the names of the weekdays, or `*` for all of them."""
    numbers = {number % 7 for part in field.split(",") for number in _part(part)}
    return "*" if len(numbers) == 7 else ",".join(_NAMES[number] for number in sorted(numbers))


def _part(part: str) -> range:
    every, some = _EVERY.fullmatch(part), _SOME.fullmatch(part)
    if every is not None:
        return range(0, _SUNDAY + 1, _step(every[1]))
    if some is None:
        raise ValueError(f"{part!r} is not a weekday")
    first = _number(some[1])
    if some[2] is None:
        return range(first, first + 1)
    last = _number(some[2])
    if last == 0 and first > 0:
        last = _SUNDAY
    if last < first:
        raise ValueError(f"the weekdays {part} end before they begin")
    return range(first, last + 1, _step(some[3]))


def _number(word: str) -> int:
    number = int(word) if word.isdecimal() else _NUMBERS.get(word)
    if number is None:
        raise ValueError(f"{word!r} is not a weekday")
    return number


def _step(word: str | None) -> int:
    step = int(word) if word is not None else 1
    if step == 0:
        raise ValueError("a step is at least 1")
    return step


HOST = "_host"
"""The value in place of the instance for a job of the host. No instance can have this name."""


class JobKind(StrEnum):
    """The kinds of jobs. ARCHIVE runs all the time; the others by a schedule."""

    ARCHIVE = "archive"
    SNAPSHOT = "snapshot"
    BACKUP = "backup"
    FULL = "full"
    VERIFY = "verify"
    DEEP_VERIFY = "deep-verify"
    DRILL = "drill"
    PREPARE = "prepare"
    POOL = "pool"
    PRUNE = "prune"
    PURGE = "purge"
    COPY = "copy"
    DOCTOR = "doctor"
    REAP = "reap"
    STATUS = "status"


ASIDE = (JobKind.ARCHIVE, JobKind.SNAPSHOT, JobKind.POOL)
"""The kinds of jobs that run in parallel with every other job of their instance."""


@dataclass(frozen=True, order=True)
class JobName:
    """A job of an instance, or of the host (`instance` is HOST)."""

    instance: str
    kind: JobKind

    @property
    def own_instance(self) -> str | None:
        """The instance (None: the job is of the host)."""
        return None if self.instance == HOST else self.instance

    def __str__(self) -> str:
        return self.kind.value if self.own_instance is None else f"{self.kind.value} {self.instance}"


@dataclass(frozen=True)
class PlannedJob:
    """A job: the arguments of `zsnapdb`, and its schedule (None: it runs all the time)."""

    name: JobName
    words: tuple[str, ...]
    schedule: ScheduleSettings | None
    timezone: str

    @property
    def is_continuous(self) -> bool:
        return self.schedule is None


def jobs_of(settings: Settings) -> tuple[PlannedJob, ...]:
    """Return every job that the configuration gives the agent, in the order of their names."""
    return tuple(sorted((*_of_host(settings), *_of_instances(settings)), key=lambda job: job.name))


def run_one_job(settings: Settings, kind: str, instance: str | None) -> PlannedJob:
    """Return the configured job of that kind. Raises ConfigError if there is none, or if several instances have one."""
    known = [job for job in jobs_of(settings) if job.name.kind == kind and instance in (None, job.name.instance)]
    if len(known) == 1:
        return known[0]
    names = ", ".join(str(job.name) for job in jobs_of(settings)) or "none"
    what = f"{kind} {instance or ''}".rstrip()
    problem = "several instances have the job" if known else "the agent has no job"
    raise ConfigError(f"{problem} {what}", hint=f"configured jobs: {names}")


def _of_host(settings: Settings) -> Iterator[PlannedJob]:
    agent = settings.agent
    metrics = ("--metrics", str(agent.metrics_file)) if agent.metrics_file is not None else ()
    for kind, schedule, words in (
        (JobKind.REAP, agent.reap, ("reap",)),
        (JobKind.STATUS, agent.status, ("status", "--all", "--notify", *metrics)),
    ):
        if schedule is not None:
            yield _planned_job(JobName(HOST, kind), words, schedule, settings)


def _of_instances(settings: Settings) -> Iterator[PlannedJob]:
    for name, instance in settings.instance.items():
        jobs, copies = instance.agent, instance.agent.copy_to
        if jobs.archive:
            yield PlannedJob(JobName(name, JobKind.ARCHIVE), ("binlog", "archive", name), None, settings.agent.timezone)
        for kind, schedule, words in (
            (JobKind.SNAPSHOT, jobs.snapshot, ("snapshot", name)),
            (JobKind.BACKUP, jobs.backup, ("backup", name)),
            (JobKind.FULL, jobs.full, ("backup", name, "--full")),
            (JobKind.VERIFY, jobs.verify, ("verify", name)),
            (JobKind.DEEP_VERIFY, jobs.deep_verify, ("verify", name, "--deep")),
            (JobKind.DRILL, jobs.drill, ("drill", name)),
            (JobKind.PREPARE, jobs.prepare, ("clone", "prepare", name)),
            (JobKind.POOL, jobs.pool, ("clone", "pool", name)),
            (JobKind.PRUNE, jobs.prune, ("prune", name)),
            (JobKind.PURGE, jobs.purge, ("binlog", "purge", name)),
            (JobKind.COPY, copies, ("copy", name, "--to", copies.to if copies is not None else "")),
            (JobKind.DOCTOR, jobs.doctor, ("doctor", name)),
        ):
            if schedule is not None:
                yield _planned_job(JobName(name, kind), words, schedule, settings)


def _planned_job(name: JobName, words: tuple[str, ...], schedule: ScheduleSettings, settings: Settings) -> PlannedJob:
    return PlannedJob(name, (*words, *schedule.arguments), schedule, schedule.timezone or settings.agent.timezone)
