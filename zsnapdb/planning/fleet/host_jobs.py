"""Decisions of a host about a request, by its own configuration instead of the request's. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base import run_context
from zsnapdb.config.settings import Settings
from zsnapdb.config.tables import FleetVerb, WorkerSettings
from zsnapdb.planning.agent_jobs import JobKind, JobName, RunRecord, is_good
from zsnapdb.planning.fleet.jobs import CLOCKS, JobRequest, JobVerdict, is_timely

_KINDS = {FleetVerb.BACKUP: JobKind.BACKUP, FleetVerb.DRILL: JobKind.DRILL, FleetVerb.VERIFY: JobKind.VERIFY}


def job_name(verb: FleetVerb, instance: str) -> JobName:
    """Return the agent's name of the same job. Both store their runs under this name."""
    return JobName(instance, _KINDS[verb])


def is_shared(name: JobName, own: WorkerSettings) -> bool:
    """Return whether fleet and agent both start the job: the agent only if the fleet does not."""
    return name.kind is JobKind.BACKUP and own.fallback == "agent" and FleetVerb.BACKUP in own.verbs


def command_arguments(request: JobRequest) -> tuple[str, ...]:
    """Return the arguments of `zsnapdb`. Only the instance and the run id come from the engine."""
    return (request.verb.value, request.instance, "--json", "--once", request.run_id)


@dataclass(frozen=True)
class Refusal:
    """Why a host does not do a job, and how the job continues."""

    reason: str
    verdict: JobVerdict


def refuse_for_now(request: JobRequest) -> JobVerdict:
    """Return how a job continues that this host cannot do now: at once on another possible host, or later here."""
    return JobVerdict.ELSEWHERE if request.host is None else JobVerdict.AGAIN


def refusal(request: JobRequest, settings: Settings, own: WorkerSettings, now: datetime) -> Refusal | None:
    """Return why this host does not do the job. Return None if it may.

    A job for any host goes to another one that has the instance, and whose clock is right. A job of this host from the
    future is given again, because it is timely once the clock is right.
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


def past_metrics(last: RunRecord | None, now: datetime) -> RunRecord | None:
    """Return the last run. Return None if it is from the future: a clock that was ahead wrote it.

    Otherwise no backup would be made until that time.
    """
    return last if last is not None and max(last.scheduled, last.started) <= now + CLOCKS else None


def is_too_soon(request: JobRequest, last: RunRecord | None, own: WorkerSettings, now: datetime) -> bool:
    """Return whether another run of the job began within the spacing. A retry of the same run is never too soon."""
    if last is None or last.run_id == request.run_id:
        return False
    return 0 <= (now - last.started).total_seconds() < own.spacing


def served_until(request: JobRequest, now: datetime) -> datetime:
    """Return the time of the schedule up to which the run serves, if it succeeds.

    It is not later than the time in the run id: a run of long ago is answered again, and makes no new backup.
    """
    return min(now, request.scheduled, run_context.time_of(request.run_id))


def served_by(request: JobRequest, last: RunRecord | None) -> str:
    """Return the run that has done the same job for this time or a later one. Return "" if there is none.

    A backup that the agent made meanwhile serves every earlier time of the schedule.
    """
    if request.verb is not FleetVerb.BACKUP or last is None or last.is_running:
        return ""
    is_done = is_good(last.exit_code, warns_with_one=False)
    return last.run_id or "unknown" if is_done and last.scheduled >= request.scheduled else ""
