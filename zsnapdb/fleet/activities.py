"""What the engine can have a host do: one activity. Its errors say whether another attempt is worth it."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from zsnapdb.fleet.job_runner import JobRefused, JobRunner
from zsnapdb.planning.fleet import messages
from zsnapdb.planning.fleet.messages import JobAnswer, JobProgress, JobRequest
from zsnapdb.planning.fleet.retry import JobVerdict, is_final, verdict

_ELSEWHERE = timedelta(seconds=2)


class HostActivities:
    """The activities of a host."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    @activity.defn(name=messages.JOB)
    async def job(self, request: JobRequest) -> JobAnswer:
        """Do the job; an ApplicationError has the class of the end as its type, and the answer as its detail."""
        attempt = activity.info().attempt
        try:
            answer = await self._runner.run(request, _beat)
        except JobRefused as refused:
            raise _error(f"refused by {self._runner.host}: {refused}", refused.kind, attempt) from None
        kind = verdict(answer.exit_code, answer.error, anywhere=request.host is None)
        if kind is JobVerdict.DONE:
            return answer
        said = ": ".join(part for part in (answer.error, answer.message) if part)
        text = f"exit code {answer.exit_code} on {answer.host}" + (f": {said}" if said else "")
        raise _error(text, kind, attempt, answer)


def _beat(progress: JobProgress) -> None:
    activity.heartbeat(progress)


def _error(text: str, kind: JobVerdict, attempt: int, answer: JobAnswer | None = None) -> ApplicationError:
    return ApplicationError(
        text,
        *([answer] if answer is not None else []),
        type=kind.value,
        non_retryable=is_final(kind, attempt),
        next_retry_delay=_ELSEWHERE if kind is JobVerdict.ELSEWHERE else None,
        category=ApplicationErrorCategory.BENIGN,  # else the client logs a traceback of what is no mistake
    )
