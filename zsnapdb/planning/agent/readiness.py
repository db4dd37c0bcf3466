"""Whether all is well, by what the agent keeps about its jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.agent.jobs import JobKind, JobName
from zsnapdb.planning.agent.runs import RunRecord, is_good


@dataclass(frozen=True)
class KnownRun:
    """A job of the agent and its last run; None if none is known."""

    name: JobName
    last: RunRecord | None


def not_ready(jobs: Sequence[KnownRun], stale: float, now: datetime) -> tuple[str, ...]:
    """Return why not all is well; nothing if it is.

    All is well if the objectives were judged within `stale` seconds, none was broken, and the last run of no job
    failed. What is not known is not well. An archive that was begun again and goes on for long does not fail any more.
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
