"""The jobs of a fleet: messages, progress texts, the next action after an attempt, and the decisions of a host.

Pure. A host accepts or refuses a request by its own configuration, not by the content of the request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from zsnapdb.base import run_context
from zsnapdb.base.errors import ConfigError, PreflightError, RetryClass, UsageError, retry_class
from zsnapdb.base.patterns import InstanceName, Moment, RunId, ShortLine
from zsnapdb.base.quantities import format_duration
from zsnapdb.config.fleet_jobs import BucketName, WindowSettings
from zsnapdb.config.services import FleetHostName, FleetVerb, WorkerSettings
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent_jobs import JobKind, JobName, RunRecord, is_good

JOB = "zsnapdb-job"
"""The name of a job's workflow, and of the workflow's activity on a host."""
SLOTS = "zsnapdb-slots"
CONTROL = "control"
"""The queue of the workflows."""
DRILL = "drill"
ANY = "any"
"""The queue that several hosts serve. This queue is for drills, and for jobs that need only a repository."""
OLDEST = timedelta(days=8)
"""The maximum age of a planned run that a host still executes."""
CLOCKS = timedelta(minutes=5)
"""The allowed difference between the clocks of two hosts."""


class _Message(BaseModel):
    # A newer control process may send more fields. An older host ignores them.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    format: Literal[1] = 1


class JobRequest(_Message):
    """A request to a host to do a job. The run serves the time `scheduled` (UTC) of a schedule."""

    verb: FleetVerb
    instance: InstanceName
    run_id: RunId
    scheduled: Moment
    host: FleetHostName | None = None
    """The host that must do the job; None for any host."""


class JobProgress(_Message):
    """The progress of a job. The text in `step` comes from zsnapdb."""

    host: FleetHostName
    step: Annotated[str, Field(max_length=80)] = ""
    done: Annotated[int, Field(ge=0, lt=2**63)] = 0
    total: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class JobAnswer(_Message):
    """The result of a job on a host. The field `served` contains the earlier run that already did the job, or ""."""

    host: FleetHostName
    exit_code: Annotated[int, Field(ge=-255, le=255)]
    seconds: Annotated[float, Field(ge=0, lt=1e12)] = 0.0
    error: Annotated[str, Field(pattern=r"^[a-z-]{0,40}$")] = ""
    message: ShortLine = ""
    served: Annotated[str, Field(max_length=100)] = ""


class FleetJob(_Message):
    """A job as described to the control process. If `host` is None, any host of the queue `queue` may do the job.

    The job may take at most `timeout` seconds. A host without a heartbeat for `heartbeat` seconds is considered dead.
    If `run_id` is None, the id is derived from the schedule's time.
    """

    verb: FleetVerb
    instance: InstanceName
    host: FleetHostName | None = None
    bucket: BucketName | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 1
    windows: tuple[WindowSettings, ...] = ()
    timeout: Annotated[float, Field(ge=1, le=30 * 86400.0)] = 86400.0
    heartbeat: Annotated[float, Field(ge=1, le=3600)] = 15.0
    run_id: RunId | None = None

    @property
    def queue(self) -> str:
        if self.host is not None:
            return queue_of(self.host)
        return DRILL if self.verb is FleetVerb.DRILL else ANY


class SlotsState(_Message):
    """The workflow ids of the runs that occupy a bucket's slots, and of the waiting runs, in order."""

    bucket: BucketName
    limit: Annotated[int, Field(ge=1, le=1000)]
    holders: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    most: int = 0
    """The highest number of slots that were occupied at the same time so far."""


def queue_of(host: str) -> str:
    """Return the queue that only this host serves."""
    return f"host.{host}"


def run_id_of(verb: FleetVerb, instance: str, scheduled: datetime) -> str:
    """Return the run id for a job at this time of a schedule. The same arguments always result in the same id."""
    moment = scheduled.astimezone(UTC).replace(microsecond=0)
    digest = hashlib.blake2b(f"{verb.value}/{instance}/{moment.isoformat()}".encode(), digest_size=4)
    return f"{moment:%Y%m%dT%H%M%SZ}-{digest.hexdigest()}"


def is_timely(scheduled: datetime, now: datetime) -> bool:
    """Return whether a host may still execute a run that was planned for this time."""
    return now - OLDEST <= scheduled <= now + CLOCKS


_PERCENT_STEP = 10
"""Progress is reported in steps of this many percent. A line for every percent would fill an operator's screen."""


def progress_text(progress: JobProgress) -> str:
    """Return the current step of a job, with its progress rounded to 10 %; "" if the host reported no step."""
    if not progress.step or not progress.total:
        return progress.step
    percent = min(100, 100 * progress.done // progress.total)
    return f"{progress.step} {percent - percent % _PERCENT_STEP} %"


def answer_text(answer: JobAnswer) -> str:
    """Return a text about a successful job: how long its command took, or which earlier run did the job."""
    if answer.served:
        return f"run {answer.served} had done it"
    return f"took {format_duration(round(answer.seconds))}"


class JobVerdict(StrEnum):
    """The next action for a job after an attempt."""

    DONE = "done"
    AGAIN = "again"
    TWICE = "twice"
    NEVER = "never"
    ELSEWHERE = "elsewhere"
    """The error code of a host that cannot do a job which any host may do.

    The host has changed nothing, and another host is tried.
    """


_OF_A_HOST = frozenset({UsageError.exit_code, ConfigError.exit_code, PreflightError.exit_code})
"""Exit codes for errors that concern only this host. A command with such an exit code has changed nothing."""
_OF_CLASSES = {
    RetryClass.AGAIN: JobVerdict.AGAIN,
    RetryClass.TWICE: JobVerdict.TWICE,
    RetryClass.NEVER: JobVerdict.NEVER,
}
_MOST = {JobVerdict.DONE: 1, JobVerdict.TWICE: 2, JobVerdict.NEVER: 1, JobVerdict.ELSEWHERE: 30}
"""The maximum number of attempts, by verdict.

For a verdict without an entry, attempts continue until the job's timeout. If 30 hosts could not do a job, the job is
offered to hosts later. Until then the job occupies no slot of its bucket.
"""


def verdict(exit_code: int, error_code: str, *, anywhere: bool) -> JobVerdict:
    """Return the next action for a job whose command ended with this exit code.

    The exit code is negative if a signal ended the command. The argument `error_code` is the stable code of the
    command's error, or "" if unknown. If `anywhere` is set, any host may do the job.
    """
    if exit_code == 0:
        return JobVerdict.DONE
    if exit_code < 0:
        # The command was ended from outside, for example by a reboot or because memory was short.
        return JobVerdict.AGAIN
    if anywhere and exit_code in _OF_A_HOST:
        return JobVerdict.ELSEWHERE
    return _OF_CLASSES[retry_class(exit_code, error_code or None)]


def is_final(kind: JobVerdict, attempt: int) -> bool:
    """Return whether attempt number `attempt`, counted from 1, is the last."""
    most = _MOST.get(kind)
    return most is not None and attempt >= most


_KINDS = {FleetVerb.BACKUP: JobKind.BACKUP, FleetVerb.DRILL: JobKind.DRILL, FleetVerb.VERIFY: JobKind.VERIFY}


def job_name(verb: FleetVerb, instance: str) -> JobName:
    """Return the agent's name for a job of the fleet. Fleet and agent both store the job's runs under this name."""
    return JobName(instance, _KINDS[verb])


def is_shared(name: JobName, own: WorkerSettings) -> bool:
    """Return whether both the fleet and the agent may start the job.

    The agent starts it only if the fleet does not start it.
    """
    return name.kind is JobKind.BACKUP and own.fallback == "agent" and FleetVerb.BACKUP in own.verbs


def command_arguments(request: JobRequest) -> tuple[str, ...]:
    """Return the arguments of `zsnapdb` for a job. Only the instance and the run id come from the engine."""
    return (request.verb.value, request.instance, "--json", "--once", request.run_id)


@dataclass(frozen=True)
class Refusal:
    """The reason why a host does not do a job, and the next action for the job."""

    reason: str
    verdict: JobVerdict


def decide_deferral(request: JobRequest) -> JobVerdict:
    """Return the next action for a job that this host cannot do now.

    Either another host does the job at once, or this host does it later.
    """
    return JobVerdict.ELSEWHERE if request.host is None else JobVerdict.AGAIN


def refusal(request: JobRequest, settings: Settings, own: WorkerSettings, now: datetime) -> Refusal | None:
    """Return why this host does not do the job; None if the host may do it.

    If any host may do the job, the job is passed on to another host that has the instance and a correct clock. If the
    job is only for this host and its time is in the future, it is offered later, when this host's clock may be right.
    """
    never = JobVerdict.NEVER
    elsewhere = JobVerdict.ELSEWHERE if request.host is None else never
    if request.verb not in own.verbs:
        return Refusal(f"{request.verb} is not in fleet.verbs of {own.host}", never)
    if request.instance not in settings.instance:
        return Refusal(f"no instance of that name is configured on {own.host}", elsewhere)
    if request.host is not None and request.host != own.host:
        return Refusal(f"the job is for another host than {own.host}", never)
    if not (is_timely(request.scheduled, now) and is_timely(run_context.time_of(request.run_id), now)):
        is_ahead = request.host is not None and max(request.scheduled, run_context.time_of(request.run_id)) > now
        planned = f"planned for {request.scheduled:%Y-%m-%d %H:%M:%S} UTC"
        kind = JobVerdict.AGAIN if is_ahead else elsewhere
        return Refusal(f"run {request.run_id}, {planned}, is not due now", kind)
    return None


def drop_future_run(last: RunRecord | None, now: datetime) -> RunRecord | None:
    """Return the last run; None if its time is in the future. In this case, the clock was ahead during that run.

    Such a run would prevent all backups until that time.
    """
    return last if last is not None and max(last.scheduled, last.started) <= now + CLOCKS else None


def is_too_soon(request: JobRequest, last: RunRecord | None, own: WorkerSettings, now: datetime) -> bool:
    """Return whether less than the configured spacing has passed since another run of the job began.

    A retry of a run is never too soon.
    """
    if last is None or last.run_id == request.run_id:
        return False
    return 0 <= (now - last.started).total_seconds() < own.spacing


def served_until(request: JobRequest, now: datetime) -> datetime:
    """Return the time up to which a successful run of this request covers the schedule.

    The result is never later than the time in the run id. A repeated request for an old run only gets the recorded
    answer of that run.
    """
    return min(now, request.scheduled, run_context.time_of(request.run_id))


def served_by(request: JobRequest, last: RunRecord | None) -> str:
    """Return the run that already did this job for the requested time or a later time; "" if there is none.

    If the agent has made a backup in the meantime, this backup serves all earlier times of the schedule.
    """
    if request.verb is not FleetVerb.BACKUP or last is None or last.is_running:
        return ""
    is_done = is_good(last.exit_code, warns_with_one=False)
    return last.run_id or "unknown" if is_done and last.scheduled >= request.scheduled else ""
