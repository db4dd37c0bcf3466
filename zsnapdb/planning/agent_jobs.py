"""The agent's jobs from a configuration, the records of their runs, and the decision which jobs start next. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from zsnapdb.base.errors import BusyError, ConfigError
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.services import ScheduleSettings
from zsnapdb.config.settings import Settings

_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_SUNDAY = 7
"""The number that stands for Sunday at the end of a range of weekdays."""
_EVERY = re.compile(r"\*(?:/([0-9]{1,3}))?")
_SOME = re.compile(r"([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3})(?:/([0-9]{1,3}))?)?")


@dataclass(frozen=True)
class CronDays:
    """Days of the month and weekdays of a schedule. The job runs only on days that match both.

    Each weekday is a name or `*`.
    """

    day: str
    weekday: str


@dataclass(frozen=True)
class CronTimes:
    """The minutes, hours and months of a job. It runs on days that match an element of `days`."""

    minute: str
    hour: str
    month: str
    days: tuple[CronDays, ...]


def cron_times(expression: str) -> CronTimes:
    """Return the times that a cron expression with five fields describes.

    Raises ConfigError if the weekdays are invalid. Only the weekdays are checked.
    """
    minute, hour, day, month, weekday = expression.split()
    try:
        numbers = {number % 7 for part in weekday.lower().split(",") for number in _part(part)}
    except ValueError as error:
        raise ConfigError(
            f"cron = {expression!r}: {error}",
            hint="a weekday is 0 to 7 (0 and 7 are Sunday) or sun to sat; for example `6`, `1-5`, `mon-fri`, `1,3` or"
            " `*/2`",
        ) from error
    named = "*" if len(numbers) == 7 else ",".join(_NAMES[number] for number in sorted(numbers))
    if day.startswith("*") or weekday.startswith("*"):
        return CronTimes(minute, hour, month, (CronDays(day, named),))
    return CronTimes(minute, hour, month, (CronDays(day, "*"), CronDays("*", named)))


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
"""The instance name of a job of the host itself. No real instance can have this name."""


class JobKind(StrEnum):
    """The kinds of jobs. ARCHIVE runs all the time; jobs of the other kinds run on a schedule."""

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
JUDGING = (JobKind.STATUS, JobKind.DOCTOR)
"""The kinds of jobs whose exit code 1 is a warning."""


@dataclass(frozen=True, order=True)
class JobName:
    """A job of an instance, or of the host (`instance` is HOST)."""

    instance: str
    kind: JobKind

    @property
    def own_instance(self) -> str | None:
        """The instance of the job; None if it is a job of the host."""
        return None if self.instance == HOST else self.instance

    def __str__(self) -> str:
        return self.kind.value if self.own_instance is None else f"{self.kind.value} {self.instance}"


@dataclass(frozen=True)
class PlannedJob:
    """A job with the arguments of `zsnapdb` and the schedule. If the job runs all the time, the schedule is None."""

    name: JobName
    words: tuple[str, ...]
    schedule: ScheduleSettings | None
    timezone: str

    @property
    def is_continuous(self) -> bool:
        return self.schedule is None


def jobs_of(settings: Settings) -> tuple[PlannedJob, ...]:
    """Return every job that the configuration assigns to the agent, ordered by name."""
    return tuple(sorted((*_of_host(settings), *_of_instances(settings)), key=lambda job: job.name))


def run_one_job(settings: Settings, kind: str, instance: str | None) -> PlannedJob:
    """Return the configured job of the given kind.

    Raises ConfigError if there is no such job, or if several instances have such a job.
    """
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


AGAIN = 60.0
"""The seconds after which a job starts again.

The time applies to a job that found another run active, and to a continuous job that ended.
"""
MOST = 3600.0
"""The maximum number of seconds before a repeatedly failing continuous job starts again."""
_STEADY = 600.0
"""If a continuous job ran for this many seconds, it does not count as failing."""


class _FrozenRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRecord(_FrozenRecord):
    """The last run of a job. The run covers all scheduled times up to `scheduled` (UTC).

    `exit_code` is None while the job runs, and negative if a signal ended the job. If it is still None after the run,
    the agent ended the job, or the agent itself was killed. Such an interrupted job starts again immediately, and its
    run does not count as failed. `failures` is the number of failed runs since the last successful run.
    """

    format: Literal[1] = 1
    run_id: Annotated[str, Field(max_length=100)] = ""
    scheduled: AwareDatetime
    started: AwareDatetime
    finished: AwareDatetime | None = None
    exit_code: int | None = None
    failures: Annotated[int, Field(ge=0)] = 0
    succeeded: AwareDatetime | None = None
    """The time when the last successful run ended."""
    tail: Annotated[str, Field(max_length=20_000)] = ""
    """The last lines of the run's output."""

    @classmethod
    def begin(cls, before: RunRecord | None, run_id: str, scheduled: datetime, started: datetime) -> RunRecord:
        """Return the record of a run that starts now. `before` is the record of the previous run, if known."""
        failures, succeeded = (before.failures, before.succeeded) if before is not None else (0, None)
        return cls(run_id=run_id, scheduled=scheduled, started=started, failures=failures, succeeded=succeeded)

    @property
    def is_running(self) -> bool:
        return self.finished is None

    def is_steady(self, now: datetime) -> bool:
        """Return whether a continuous job has run for so long that it no longer counts as failing."""
        return self.is_running and (now - self.started).total_seconds() >= _STEADY

    @property
    def is_lost(self) -> bool:
        """Whether the run was interrupted before its end."""
        return self.finished is not None and self.exit_code is None

    def ended(self, at: datetime, exit_code: int | None, tail: str, *, is_good: bool) -> RunRecord:
        """Return the record of the run after its end."""
        changes = {
            "finished": at,
            "exit_code": exit_code,
            "tail": tail,
            # A run that found another run active, or that was interrupted, has neither succeeded nor failed.
            "failures": 0 if is_good else self.failures + (exit_code not in (None, BusyError.exit_code)),
            "succeeded": at if is_good else self.succeeded,
        }
        return self.model_copy(update=changes)


class PauseRecord(_FrozenRecord):
    """A pause of an instance. Its jobs do not start between `since` (None if unknown) and `until` (UTC)."""

    format: Literal[1] = 1
    since: AwareDatetime | None = None
    until: AwareDatetime
    reason: Annotated[str, Field(min_length=1, max_length=500)]

    def before_clock(self, now: datetime) -> PauseRecord:
        """Return the pause, corrected if its start is in the future because the clock was ahead.

        The corrected pause starts now and has the same duration.
        """
        if self.since is None or self.since <= now:
            return self
        return self.model_copy(update={"since": now, "until": now + (self.until - self.since)})


class FleetContact(_FrozenRecord):
    """The time when the fleet last gave this host a job (UTC)."""

    format: Literal[1] = 1
    given: AwareDatetime


@dataclass(frozen=True)
class DueJob:
    """A job and the next time of its schedule."""

    name: JobName
    scheduled: datetime
    begins: datetime
    """The earliest start: the scheduled time plus the jitter.

    The start is later if the last run found that another run was active.
    """


def is_good(exit_code: int | None, *, warns_with_one: bool) -> bool:
    """Return whether the exit code means success. With `warns_with_one`, 1 is a warning and also means success."""
    return exit_code == 0 or (warns_with_one and exit_code == 1)


def jitter(name: JobName, scheduled: datetime, longest: float) -> float:
    """Return the delay of a run in seconds, from 0 to `longest`. The same run always gets the same delay."""
    digest = hashlib.blake2b(f"{name}/{scheduled.isoformat()}".encode(), digest_size=8).digest()
    return longest * int.from_bytes(digest) / 2**64


def left_to_fleet(record: RunRecord | None, given: datetime | None, longest: float, now: datetime) -> float:
    """Return how many seconds the agent waits for the fleet to start a job before the agent itself starts it.

    `record` is the last run by the agent or the fleet. `given` is the time when the fleet last gave this host the job.
    The fleet counts as unreachable if `given` is before the last run, or in the future because the clock was ahead. If
    the fleet is unreachable, the agent itself starts the job on time.
    """
    is_away = record is not None and not (given is not None and record.started <= given <= now)
    return 0.0 if is_away else longest


def is_later(record: RunRecord, other: RunRecord) -> bool:
    """Return whether the run `record` has a later event (start or end) than the run `other`."""
    return (record.finished or record.started) > (other.finished or other.started)


def before_clock(record: RunRecord, now: datetime) -> RunRecord:
    """Return the record with each time in the future replaced by `now`.

    Therefore jobs still start after the clock was set back.
    """
    times = {"scheduled": record.scheduled, "started": record.started, "finished": record.finished}
    changes = {name: now for name, time in times.items() if time is not None and time > now}
    return record.model_copy(update=changes) if changes else record


def find_retry_time(record: RunRecord | None, *, is_continuous: bool) -> datetime | None:
    """Return when the job starts again because of its last run; None if the next start depends only on the schedule.

    An interrupted job starts again immediately. A job that was refused because another run was active starts again
    soon. A continuous job that keeps failing waits longer each time.
    """
    if record is None or record.finished is None:
        return None
    if record.is_lost:
        return record.finished
    if is_continuous:
        lasted = (record.finished - record.started).total_seconds()
        wait = AGAIN if lasted >= _STEADY else min(MOST, AGAIN * 2 ** min(10, max(0, record.failures - 1)))
        return record.finished + timedelta(seconds=wait)
    if record.exit_code == BusyError.exit_code:
        return record.finished + timedelta(seconds=AGAIN)
    return None


def starts_at(
    due: Sequence[DueJob],
    running: Collection[str],
    held: Collection[str],
    pauses: Mapping[str, PauseRecord],
    now: datetime,
) -> tuple[DueJob, ...]:
    """Return the jobs that start now.

    An instance without a running job gets the job that has been due longest. `running` contains the instances with a
    running job, and `held` the instances whose jobs may not start. Jobs of the kinds in ASIDE do not wait for other
    jobs of the instance.
    """
    due = [job for job in due if job.name.instance not in held]
    beside = tuple(job for job in due if job.name.kind in ASIDE and _may_begin(job, pauses, now))
    chosen: dict[str, DueJob] = {}
    for job in sorted(due, key=lambda job: (job.begins, job.name)):
        name = job.name.instance
        if job not in beside and name not in running and name not in chosen and _may_begin(job, pauses, now):
            chosen[name] = job
    return (*beside, *chosen.values())


def _may_begin(job: DueJob, pauses: Mapping[str, PauseRecord], now: datetime) -> bool:
    pause = pauses.get(job.name.instance)
    return job.begins <= now and (pause is None or pause.until <= now)


@dataclass(frozen=True)
class KnownRun:
    """A job of the agent and its last run, if known."""

    name: JobName
    last: RunRecord | None


def not_ready(jobs: Sequence[KnownRun], stale: float, now: datetime) -> tuple[str, ...]:
    """Return the problems of the agent's jobs; empty if there are none.

    There is no problem if the objectives were evaluated within the last `stale` seconds, no objective was broken, and
    no job's last run failed. An unknown state is also a problem. A restarted archiver does not count as failing if it
    has run long enough.
    """
    reasons = [
        f"{job.name} failed {job.last.failures} times in a row"
        for job in jobs
        if job.name.kind is not JobKind.STATUS
        and job.last is not None
        and job.last.failures
        and not (job.name.kind is JobKind.ARCHIVE and job.last.is_steady(now))
    ]
    judged = next((job.last for job in jobs if job.name.kind is JobKind.STATUS), None)
    return (*_of_judgement(judged, stale, now), *reasons)


def _of_judgement(judged: RunRecord | None, stale: float, now: datetime) -> tuple[str, ...]:
    if judged is None:
        return ("the objectives were not judged yet",)
    if not judged.is_running and not is_good(judged.exit_code, warns_with_one=True):
        return (f"the last judgement of the objectives ended with {judged.exit_code}",)
    if judged.failures:
        return ("the last judgement of the objectives was not good",)
    if judged.succeeded is None:
        return ("the objectives were not judged yet",)
    age = (now - judged.succeeded).total_seconds()
    if not -stale <= age <= stale:
        return (f"the objectives were judged last {format_duration(max(0, round(age)))} ago",)
    return ()
