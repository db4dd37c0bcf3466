"""The jobs that a configuration gives the agent, and the command of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.errors import ConfigError
from zsnapdb.config.agent import ScheduleSettings
from zsnapdb.config.settings import Settings

HOST = "_host"
"""Stands for the instance of a job that is about the host. No instance has this name: names begin otherwise."""


class JobKind(StrEnum):
    """What a job does. ARCHIVE runs all the time; the others by a schedule."""

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
"""The kinds of jobs that run beside every other job of their instance."""


@dataclass(frozen=True, order=True)
class JobName:
    """A job of an instance, or of the host (`instance` is HOST)."""

    instance: str
    kind: JobKind

    @property
    def own_instance(self) -> str | None:
        """The instance; None: the job is of the host."""
        return None if self.instance == HOST else self.instance

    def __str__(self) -> str:
        return self.kind.value if self.own_instance is None else f"{self.kind.value} {self.instance}"


@dataclass(frozen=True)
class PlannedJob:
    """A job: the words of its command after `zsnapdb`, and when it runs (None: all the time)."""

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


def one_job(settings: Settings, kind: str, instance: str | None) -> PlannedJob:
    """Return the configured job of that kind. ConfigError if there is none, or if several instances have one."""
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
            yield _planned(JobName(HOST, kind), words, schedule, settings)


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
                yield _planned(JobName(name, kind), words, schedule, settings)


def _planned(name: JobName, words: tuple[str, ...], schedule: ScheduleSettings, settings: Settings) -> PlannedJob:
    return PlannedJob(name, (*words, *schedule.arguments), schedule, schedule.timezone or settings.agent.timezone)
