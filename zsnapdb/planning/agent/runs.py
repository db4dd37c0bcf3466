"""The agent's records of runs, and the choice of the jobs that start next. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from zsnapdb.base.errors import BusyError
from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.agent.jobs import ASIDE, JobKind, JobName

AGAIN = 60.0
"""The seconds after which a job starts again that found another run active, or a continuous job that ended."""
MOST = 3600.0
"""The longest time in seconds until a continuous job that keeps failing starts again."""
_STEADY = 600.0
"""A continuous job that ran for this many seconds was not failing."""


class _FrozenRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRecord(_FrozenRecord):
    """The last run of a job. It served every time of the schedule up to `scheduled` (UTC).

    `exit_code` is None while it runs, and negative if a signal ended it. After its end, None means that the agent ended
    it or died: the run is made up for, and has not failed. `failures` counts failed runs since the last good one.
    """

    format: Literal[1] = 1
    run_id: Annotated[str, Field(max_length=100)] = ""
    scheduled: AwareDatetime
    started: AwareDatetime
    finished: AwareDatetime | None = None
    exit_code: int | None = None
    failures: Annotated[int, Field(ge=0)] = 0
    succeeded: AwareDatetime | None = None
    """The end of the last good run."""
    tail: Annotated[str, Field(max_length=20_000)] = ""
    """The last lines of its output."""

    @classmethod
    def begin(cls, before: RunRecord | None, run_id: str, scheduled: datetime, started: datetime) -> RunRecord:
        """Return the record of a run that starts after the last one (None: unknown)."""
        failures, succeeded = (before.failures, before.succeeded) if before is not None else (0, None)
        return cls(run_id=run_id, scheduled=scheduled, started=started, failures=failures, succeeded=succeeded)

    @property
    def is_running(self) -> bool:
        return self.finished is None

    def is_steady(self, now: datetime) -> bool:
        """Return whether it has run so long that a continuous job no longer counts as failing."""
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
            # A run that found another one active, or that was interrupted, has neither succeeded nor failed.
            "failures": 0 if is_good else self.failures + (exit_code not in (None, BusyError.exit_code)),
            "succeeded": at if is_good else self.succeeded,
        }
        return self.model_copy(update=changes)


class PauseRecord(_FrozenRecord):
    """A pause of an instance: none of its jobs starts before `until` (UTC)."""

    format: Literal[1] = 1
    until: AwareDatetime
    reason: Annotated[str, Field(min_length=1, max_length=500)]


class GivenRecord(_FrozenRecord):
    """The time when the fleet last gave this host a job (UTC)."""

    format: Literal[1] = 1
    given: AwareDatetime


@dataclass(frozen=True)
class DueJob:
    """A job and the next time of its schedule."""

    name: JobName
    scheduled: datetime
    begins: datetime
    """The earliest start: the scheduled time plus the jitter, or later after a run that found another one active."""


def is_good(exit_code: int | None, *, warns_with_one: bool) -> bool:
    """Return whether the exit code is that of a good run. A job that judges ends with 1 for a warning."""
    return exit_code == 0 or (warns_with_one and exit_code == 1)


def jitter(name: JobName, scheduled: datetime, longest: float) -> float:
    """Return the delay of a run in seconds, from 0 to `longest`: always the same for the same run."""
    digest = hashlib.blake2b(f"{name}/{scheduled.isoformat()}".encode(), digest_size=8).digest()
    return longest * int.from_bytes(digest) / 2**64


def left_to_fleet(record: RunRecord | None, given: datetime | None, longest: float) -> float:
    """Return the seconds for which the agent leaves a job to the fleet before it starts the job itself.

    `record` is the last run of agent or fleet; `given` is when the fleet last gave this host the job. If that was
    before the last run, the fleet is unreachable, and the agent keeps to its own times.
    """
    is_away = record is not None and (given is None or given < record.started)
    return 0.0 if is_away else longest


def is_later(record: RunRecord, other: RunRecord) -> bool:
    """Return whether the last known event of this run was after that of the other."""
    return (record.finished or record.started) > (other.finished or other.started)


def before_clock(record: RunRecord, now: datetime) -> RunRecord:
    """Return the record with no time after now, so that a clock that was set back stops no job."""
    times = {"scheduled": record.scheduled, "started": record.started, "finished": record.finished}
    changes = {name: now for name, time in times.items() if time is not None and time > now}
    return record.model_copy(update=changes) if changes else record


def retry_delay(record: RunRecord | None, *, is_continuous: bool) -> datetime | None:
    """Return when the job starts again because of its last run. Return None if only its schedule decides.

    An interrupted run is made up for at once. A job that found another run active starts again soon. A continuous job
    that keeps failing waits longer each time.
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
    """Return the jobs that start now: for each instance without a running job the one that is due longest.

    `running` are the instances with a running job, `held` those whose jobs do not start. Jobs of the kinds ASIDE do not
    wait for others.
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
    """A job of the agent and its last run (None: unknown)."""

    name: JobName
    last: RunRecord | None


def not_ready(jobs: Sequence[KnownRun], stale: float, now: datetime) -> tuple[str, ...]:
    """Return the problems. Return nothing if all is well.

    All is well if the objectives were judged within `stale` seconds, none was broken, and no job's last run failed. An
    unknown state is a problem. An archive that was started again and has run long enough does not count as failing.
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
