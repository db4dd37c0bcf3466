"""Reads and changes the fleet's state in the engine: schedules, slots of buckets, and runs of jobs.

The engine compares times literally with the clock of a time zone (Temporal's API, `ScheduleSpec.timezone_name`). If the
clock is set forward and skips a time, the job does not start at that time. When the clock is set back, Temporal 1.32
skips times of the repeated hour: `30 * * * *` in Europe/Berlin gives 23:30, 0:30, 2:30 UTC. So the times at which the
agent starts jobs around such changes are added one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from pydantic import ValidationError
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from zsnapdb.agent.schedule import Schedule as JobSchedule
from zsnapdb.config.fleet_jobs import FleetScheduleSettings
from zsnapdb.config.services import ScheduleSettings
from zsnapdb.fleet.connection import first_line
from zsnapdb.fleet.workflows import LIMIT, slots_id
from zsnapdb.planning.agent_jobs import cron_times
from zsnapdb.planning.fleet.jobs import (
    CONTROL,
    JOB,
    SLOTS,
    FleetJob,
    JobAnswer,
    JobProgress,
    SlotsState,
    answer_text,
    progress_text,
)
from zsnapdb.planning.fleet.schedule_plan import PREFIX, FleetSchedule, JobRun, PresentLimit, PresentSchedule

YEARS = 10
"""Number of years for which times around clock changes are added."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
_ONCE = timedelta(days=2 * YEARS * 365)
"""An interval so long that it occurs only once. The engine has no other way to specify a single time."""


def specification(schedule: FleetScheduleSettings, now: datetime) -> ScheduleSpec:
    """Return the times of the schedule from `now` (UTC) on. The agent starts jobs at the same times."""
    jitter = timedelta(seconds=schedule.jitter) if schedule.jitter else None
    if schedule.every is not None:
        return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=schedule.every))], jitter=jitter)
    assert schedule.cron is not None
    times = cron_times(schedule.cron)
    # In cron, it suffices that the day of the month or the weekday matches. The engine requires that both match.
    lines = [f"{times.minute} {times.hour} {days.day} {times.month} {days.weekday}" for days in times.days]
    changes = _around_changes(schedule.cron, schedule.timezone, now.year)
    return ScheduleSpec(
        cron_expressions=lines,
        intervals=[ScheduleIntervalSpec(every=_ONCE, offset=(at - _EPOCH) % _ONCE) for at in changes],
        jitter=jitter,
        time_zone_name=schedule.timezone,
    )


@functools.lru_cache(maxsize=256)
def _around_changes(cron: str, timezone: str, year: int) -> tuple[datetime, ...]:
    """Return the agent's times (UTC) from an hour before to two hours after each change of the clock."""
    schedule, found = JobSchedule.of(ScheduleSettings(cron=cron), timezone), []
    for change in _changes(ZoneInfo(timezone), year):
        at, end = change - _HOUR - _MINUTE, change + 2 * _HOUR
        while (following := schedule.after(at)) is not None and following <= end:
            at = following
            found.append(at)
    return tuple(found)


def _changes(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    """Yield the times (UTC) when the zone's clock is set forward or back in the `YEARS` years from `year` on."""
    day, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + YEARS, 1, 1, tzinfo=UTC)
    while day < end:
        if day.astimezone(zone).utcoffset() != (day + _DAY).astimezone(zone).utcoffset():
            minutes = (day + number * _MINUTE for number in range(1, round(_DAY / _MINUTE) + 1))
            yield next(at for at in minutes if at.astimezone(zone).utcoffset() != day.astimezone(zone).utcoffset())
        day += _DAY


CATCH_UP = timedelta(hours=24)
"""Maximum delay with which a missed run is still started."""
_DOCUMENT, _JOB = "zsnapdb_schedule", "zsnapdb_job"
"""Memo keys, one for the applied schedule and one for a job."""
_AT_ONCE = 32
_SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
_ASKED = 5
"""Number of attempts to start a run if the engine does not answer in time."""
_LOOK_SECONDS = 3.0
"""Seconds between two queries about a run that is watched."""
_QUERY = "__temporal_workflow_metadata"
"""The name of the client library's query for details that a workflow sets."""
_QUERY_PATIENCE = timedelta(seconds=5)
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class FleetEngine:
    """The engine, with the connection of an operator."""

    client: Client

    async def schedules(self) -> tuple[PresentSchedule, ...]:
        """Return the schedules of zsnapdb, by id. Very recent changes may be missing."""
        found = []
        async for one in await self.client.list_schedules():
            if one.id.startswith(PREFIX):
                kept = await one.memo_value(_DOCUMENT, "")
                paused = one.schedule is not None and one.schedule.state.paused
                found.append(PresentSchedule(one.id, kept if isinstance(kept, str) else "", paused))
        return tuple(sorted(found, key=lambda one: one.schedule_id))

    async def limits(self) -> tuple[PresentLimit, ...]:
        """Return the limits of the buckets that have slots."""
        query, begin = f"WorkflowType = '{SLOTS}' AND ExecutionStatus = 'Running'", slots_id("")
        found = []
        async for one in self.client.list_workflows(query):
            limit = await one.memo_value(LIMIT, 0)
            if one.id.startswith(begin):
                found.append(PresentLimit(one.id.removeprefix(begin), limit if isinstance(limit, int) else 0))
        return tuple(found)

    async def make_schedule(self, schedule: FleetSchedule, stale: Sequence[str]) -> None:
        """Create the schedule, then remove the stale schedules that it replaces.

        The new schedule is paused if one of the stale schedules is paused.

        After an interruption, at least one schedule exists. If several schedules start a run for the same time, these
        runs have the same id.
        """
        states = [await self._state(name) for name in stale]
        state = next((one for one in states if one is not None and one.paused), ScheduleState())
        document = {_DOCUMENT: schedule.model_dump_json()}
        with contextlib.suppress(ScheduleAlreadyRunningError):
            await self.client.create_schedule(schedule.schedule_id, _engine_schedule(schedule, state), memo=document)
        await self.remove_schedules(stale)

    async def _state(self, name: str) -> ScheduleState | None:
        """Return the current state of a schedule; None if it does not exist."""
        try:
            known = await self.client.get_schedule_handle(name).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return known.schedule.state

    async def remove_schedules(self, names: Sequence[str]) -> None:
        """Remove the schedules. Missing schedules are skipped, and runs that have started continue."""
        for name in names:
            await _is_there(self.client.get_schedule_handle(name).delete())

    async def pause(self, name: str, reason: str) -> bool:
        """Stop the schedule from starting jobs. The schedule's current run continues.

        Return whether the schedule exists.
        """
        return await _is_there(self.client.get_schedule_handle(name).pause(note=reason))

    async def resume(self, name: str, reason: str) -> bool:
        """Let the schedule start jobs again. Jobs that were missed during the pause are not started.

        Return whether the schedule exists.
        """
        return await _is_there(self.client.get_schedule_handle(name).unpause(note=reason))

    async def keep_limit(self, bucket: str, limit: int) -> None:
        """Set the number of jobs that may use the bucket at the same time."""
        state = SlotsState(bucket=bucket, limit=limit)
        await self.client.start_workflow(
            SLOTS,
            state,
            id=slots_id(bucket),
            task_queue=CONTROL,
            memo={LIMIT: limit},
            start_signal="resize",
            start_signal_args=[limit],
        )

    async def remove_limit(self, bucket: str) -> None:
        """Remove the limit of the bucket. A job that still uses the bucket recreates its slots."""
        await _is_there(self.client.get_workflow_handle(slots_id(bucket)).signal("close"))

    async def begin(self, job: FleetJob) -> str:
        """Start a run of the job now, and return the id of its workflow.

        If the engine does not answer in time, the request is repeated. The run's id prevents a second start.
        """
        workflow_id = f"run/{job.verb}/{job.instance}/{job.run_id}"
        for left in reversed(range(_ASKED)):
            try:
                await self.client.start_workflow(
                    JOB, job, id=workflow_id, task_queue=CONTROL, memo={_JOB: job.model_dump_json()}
                )
            except WorkflowAlreadyStartedError:
                break
            except RPCError as error:
                if error.status is not RPCStatusCode.DEADLINE_EXCEEDED or not left:
                    raise
            else:
                break
        return workflow_id

    async def watch(self, workflow_id: str) -> AsyncIterator[JobRun]:
        """Yield the run's state every few seconds, and once more after its end."""
        handle = self.client.get_workflow_handle(workflow_id, result_type=JobAnswer)
        end = asyncio.ensure_future(handle.result())
        try:
            while not end.done():
                yield await self._told(await handle.describe())
                await asyncio.wait((end,), timeout=_LOOK_SECONDS)
            with contextlib.suppress(WorkflowFailureError):
                end.result()
        finally:
            end.cancel()
        yield await self._told(await handle.describe())

    async def cancel(self, workflow_id: str) -> bool:
        """Ask the run to end.

        Return whether the run was still running. It may have ended already, because a list of runs can be outdated.
        """
        return await _is_there(self.client.get_workflow_handle(workflow_id).cancel())

    async def runs(self, most: int, *, only_running: bool) -> AsyncIterator[JobRun]:
        """Yield at most `most` of the newest runs, without their results."""
        query = f"WorkflowType = '{JOB}'" + (" AND ExecutionStatus = 'Running'" if only_running else "")
        async for one in self.client.list_workflows(query, limit=most):
            yield await self._run(one)

    async def told(self, run: JobRun) -> JobRun:
        """Return the run with its host, and its result or last failure.

        If the run no longer exists, it is returned unchanged.
        """
        try:
            return await self._told(await self.client.get_workflow_handle(run.workflow_id).describe())
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return run

    async def _told(self, execution: WorkflowExecutionDescription) -> JobRun:
        run = await self._run(execution)
        handle = self.client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=JobAnswer)
        if execution.status is WorkflowExecutionStatus.RUNNING:
            return replace(run, message=await self._running_message(execution))
        try:
            answer = await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            return replace(run, message=_cause(error))
        # An engine can complete a run without a result.
        return replace(run, host=answer.host, message=answer_text(answer)) if answer is not None else run

    async def _running_message(self, execution: WorkflowExecutionDescription) -> str:
        """Return the progress and previous failure of a running run, or the reason why the run waits."""
        for one in execution.raw_description.pending_activities:
            if one.activity_type.name != JOB:
                continue
            if one.state == _SCHEDULED and one.attempt == 1:
                return f"waits for a host that serves queue {one.activity_options.task_queue.name}"
            return _attempt_text(one, await self._progress(one))
        return await self._details(execution)

    async def _progress(self, activity: PendingActivityInfo) -> str:
        """Return the last progress that the host reported; "" if the host reported none, or if it cannot be parsed."""
        try:
            # Without heartbeat details, `decode` would fail.
            details = await self.client.data_converter.decode_wrapper(activity.heartbeat_details, [JobProgress])
        except (KeyError, ValueError, RuntimeError):
            return ""
        return next((progress_text(one) for one in details if isinstance(one, JobProgress)), "")

    async def _details(self, execution: WorkflowExecutionDescription) -> str:
        """Return the workflow's own reason why it waits. Control answers this query."""
        handle = self.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        try:
            known = await handle.query(_QUERY, result_type=WorkflowMetadata, rpc_timeout=_QUERY_PATIENCE)
        except (RPCError, WorkflowQueryFailedError):
            return "waits: `zsnapdb fleet control` does not answer"
        return (known.current_details if known is not None else "") or "waits"

    async def _run(self, execution: WorkflowExecution) -> JobRun:
        state = execution.status.name.lower().replace("_", " ") if execution.status is not None else "unknown"
        kept = await execution.memo_value(_JOB, "")
        try:
            job = FleetJob.model_validate_json(kept if isinstance(kept, str) else "")
        except ValidationError:
            job = None
        return JobRun(execution.id, job, state, execution.start_time, execution.close_time)


async def _is_there(asked: Awaitable[None]) -> bool:
    """Send the request. Return whether its target exists, or is still running."""
    try:
        await asked
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


def _attempt_text(activity: PendingActivityInfo, progress: str) -> str:
    """Return the number and progress of the current attempt, and the failure of the previous attempt."""
    parts = [f"attempt {activity.attempt}"]
    if progress and activity.state != _SCHEDULED:
        parts.append(progress)
    if activity.last_failure.message:
        parts.append(f"the last failed: {activity.last_failure.message[:300]}")
    return ", ".join(parts)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _engine_schedule(schedule: FleetSchedule, state: ScheduleState) -> Schedule:
    job = schedule.job
    return Schedule(
        action=ScheduleActionStartWorkflow(
            JOB, job, id=f"job/{job.verb}/{job.instance}", task_queue=CONTROL, memo={_JOB: job.model_dump_json()}
        ),
        spec=specification(schedule, datetime.now(UTC)),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        state=state,
    )


async def each(items: Sequence[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
    """Return the answers for all items, in order. Up to 32 requests run at the same time."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(item: A) -> T:
        async with turns:
            return await ask(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
