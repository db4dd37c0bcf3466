"""What a host does when it is asked: by its own configuration, not by what it is told. Pure."""

from __future__ import annotations

from datetime import datetime

from zsnapdb.base import run_id
from zsnapdb.config.engine import FleetVerb, WorkerSettings
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent.jobs import JobKind, JobName
from zsnapdb.planning.agent.runs import RunRecord, is_good
from zsnapdb.planning.fleet.messages import JobRequest, is_timely

_KINDS = {
    FleetVerb.BACKUP: JobKind.BACKUP,
    FleetVerb.DRILL: JobKind.DRILL,
    FleetVerb.VERIFY: JobKind.VERIFY,
}


def job_name(verb: FleetVerb, instance: str) -> JobName:
    """Return the job of the agent that is the same: both keep their runs under this name."""
    return JobName(instance, _KINDS[verb])


def is_shared(name: JobName, own: WorkerSettings) -> bool:
    """Whether both the fleet and the agent of this host begin the job: the agent only if the fleet does not."""
    return name.kind is JobKind.BACKUP and own.fallback == "agent" and FleetVerb.BACKUP in own.verbs


def words(request: JobRequest) -> tuple[str, ...]:
    """Return the words of the command after `zsnapdb`. Only the two names in it are the engine's."""
    return (request.verb.value, request.instance, "--json", "--once", request.run_id)


def refusal(request: JobRequest, settings: Settings, own: WorkerSettings, now: datetime) -> str:
    """Return why this host does not do it, "" if it may."""
    if request.verb not in own.verbs:
        return f"{request.verb} is not in fleet.verbs of {own.host}"
    if request.instance not in settings.instance:
        return f"no instance of that name is configured on {own.host}"
    if request.host is not None and request.host != own.host:
        return f"the job is for another host than {own.host}"
    if not is_timely(request.scheduled, now) or not is_timely(run_id.time_of(request.run_id), now):
        return f"run {request.run_id}, planned for {request.scheduled:%Y-%m-%d %H:%M:%S} UTC, is not one of now"
    return ""


def is_too_soon(request: JobRequest, last: RunRecord | None, own: WorkerSettings, now: datetime) -> bool:
    """Whether the job began a moment ago as another run. A run that is tried again is never too soon."""
    if last is None or last.run_id == request.run_id:
        return False
    return 0 <= (now - last.started).total_seconds() < own.spacing


def served_until(request: JobRequest, now: datetime) -> datetime:
    """Return up to which time of its schedule the run serves, if it is good.

    Not beyond the time in its id: a run that was done long ago is answered for now, and makes nothing.
    """
    return min(now, request.scheduled, run_id.time_of(request.run_id))


def served_by(request: JobRequest, last: RunRecord | None) -> str:
    """Return the run that has done the same job already, for this time or a later one; "" if none has.

    A backup that the agent made meanwhile serves every time of the schedule before it.
    """
    if request.verb is not FleetVerb.BACKUP or last is None or last.is_running:
        return ""
    is_done = is_good(last.exit_code, warns_with_one=False)
    return last.run_id or "unknown" if is_done and last.scheduled >= request.scheduled else ""
