"""The workflows of a fleet: a job, and the slots of a bucket. They run in `zsnapdb fleet control`, not on the hosts.

Pure functions in `planning/fleet` make the decisions of workflows, so that a history can be replayed. The size of a
history is limited: a job has a bounded number of attempts and waits, and the slots continue as a new run.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    TimeoutType,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import TimeoutError as EngineTimeout

from zsnapdb.planning.fleet import jobs
from zsnapdb.planning.fleet.jobs import JobVerdict
from zsnapdb.planning.fleet.schedule_plan import closed_until

CLOSED, SERVED = "zsnapdb-closed", "zsnapdb-served"
"""The activities of control."""
LIMIT = "zsnapdb_limit"
"""The memo key for the number of slots that a bucket has."""
_SCHEDULED = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
_ASKED = timedelta(seconds=30)
_ASK_AGAIN = timedelta(minutes=10)
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 900.0
_WAITED_FOR_MACHINE = 12
"""Number of checks after which a job fails if its host still has two machines."""
_UNTAKEN = timedelta(minutes=3)
"""The time for which a job with a slot waits for its host.

A host that is off must not occupy a bucket's slot for longer.
"""
_LOOK_AT_HOLDERS = timedelta(seconds=30)
_MOST_EVENTS = 4000
"""Number of events after which the workflow of slots continues as a new run with a new history."""


@workflow.defn(name=jobs.JOB)
class JobWorkflow:
    """One run of a job: it waits for the end of a window and for a slot, and then lets a host run the job."""

    def __init__(self) -> None:
        self._is_granted = False

    @workflow.signal
    def granted(self) -> None:
        """Record that this run has a slot."""
        self._is_granted = True

    @workflow.run
    async def run(self, job: jobs.FleetJob) -> jobs.JobAnswer:
        """Return the result of the job. Raises ApplicationError after the final failure."""
        scheduled = workflow.info().typed_search_attributes.get(_SCHEDULED) or workflow.now()
        run_id = job.run_id or jobs.run_id_of(job.verb, job.instance, scheduled)
        request = jobs.JobRequest(
            verb=job.verb, instance=job.instance, run_id=run_id, scheduled=scheduled, host=job.host
        )
        await _outside_windows(job)
        if job.host is not None:
            await _one_machine(job.host)
        return await self._until_done(job, request)

    async def _until_done(self, job: jobs.FleetJob, request: jobs.JobRequest) -> jobs.JobAnswer:
        """Let a host run the job, with a slot of its bucket.

        If no host takes the job, the slot is released until the next attempt.
        """
        ends, seconds = workflow.now() + timedelta(seconds=job.timeout), _FIRST_PAUSE
        while (left := ends - workflow.now()) > timedelta():
            await _outside_windows(job)
            try:
                await self._take_slot(job)
                # A window may have begun while the run waited for a slot.
                if closed_until(job.windows, workflow.now()) is None:
                    return await _on_host(job, request, left)
            except ActivityError as error:
                if not _was_not_taken(error):
                    raise
            finally:
                # The cancellation that ended the job must not also interrupt the release of the slot.
                await asyncio.shield(_release(job))
                self._is_granted = False
            workflow.set_current_details(f"no host of queue {job.queue} takes it now")
            await asyncio.sleep(max(0.0, min(seconds, (ends - workflow.now()).total_seconds())))
            seconds = min(_LONGEST_PAUSE, 2 * seconds)
        raise ApplicationError(f"no host of queue {job.queue} took the job", type="untaken", non_retryable=True)

    async def _take_slot(self, job: jobs.FleetJob) -> None:
        """Wait until this run has a slot of its bucket, if it has a bucket.

        If the slots do not exist, they are created.
        """
        if job.bucket is None:
            return
        workflow.set_current_details(f"waits for a slot of bucket {job.bucket}")
        while not self._is_granted:
            try:
                await _slots(job).signal("acquire", workflow.info().workflow_id)
            except FailureError:
                await _start_slots(job)
                continue
            try:
                await workflow.wait_condition(lambda: self._is_granted, timeout=_ASK_AGAIN)
            except TimeoutError:
                continue


def slots_id(bucket: str) -> str:
    """Return the id of the workflow that manages the slots of a bucket."""
    return f"slots/{bucket}"


def _slots(job: jobs.FleetJob) -> workflow.ExternalWorkflowHandle[object]:
    assert job.bucket is not None
    return workflow.get_external_workflow_handle(slots_id(job.bucket))


async def _release(job: jobs.FleetJob) -> None:
    if job.bucket is None:
        return
    try:
        await _slots(job).signal("release", workflow.info().workflow_id)
    except FailureError:
        # If the slots no longer exist, no release is needed.
        return


async def _start_slots(job: jobs.FleetJob) -> None:
    assert job.bucket is not None
    try:
        await workflow.start_child_workflow(
            jobs.SLOTS,
            jobs.SlotsState(bucket=job.bucket, limit=job.limit),
            id=slots_id(job.bucket),
            task_queue=jobs.CONTROL,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )
    except WorkflowAlreadyStartedError:
        return


async def _outside_windows(job: jobs.FleetJob) -> None:
    """Wait until no maintenance window prevents the start of the job."""
    while (until := closed_until(job.windows, workflow.now())) is not None:
        workflow.set_current_details(f"waits for the end of a window at {until:%Y-%m-%d %H:%M} UTC")
        await asyncio.sleep((until - workflow.now()).total_seconds())


async def _one_machine(host: str) -> None:
    """Wait until at most one machine serves this host. Raises ApplicationError if two machines continue to serve it.

    If a machine replaced another machine, no error is raised, because the engine forgets the old machine after some
    minutes.
    """
    seconds = _FIRST_PAUSE
    for _ in range(_WAITED_FOR_MACHINE):
        known: list[str] = await workflow.execute_activity(
            SERVED, host, result_type=list[str], start_to_close_timeout=_ASKED, task_queue=jobs.CONTROL
        )
        if len(known) < 2:
            return
        workflow.set_current_details(f"two machines call themselves {host}: {', '.join(known)}")
        await asyncio.sleep(seconds)
        seconds = min(_LONGEST_PAUSE, 2 * seconds)
    raise ApplicationError(f"two machines call themselves {host}", type="two-machines", non_retryable=True)


def _was_not_taken(error: ActivityError) -> bool:
    """Return whether no host started the job. Either no host requested jobs, or the hosts that did could not run it."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type == JobVerdict.ELSEWHERE.value
    return isinstance(cause, EngineTimeout) and cause.type is TimeoutType.SCHEDULE_TO_START


async def _on_host(job: jobs.FleetJob, request: jobs.JobRequest, longest: timedelta) -> jobs.JobAnswer:
    workflow.set_current_details(f"on queue {job.queue}, run {request.run_id}")
    answer: jobs.JobAnswer = await workflow.execute_activity(
        jobs.JOB,
        request,
        result_type=jobs.JobAnswer,
        task_queue=job.queue,
        schedule_to_close_timeout=longest,
        schedule_to_start_timeout=_UNTAKEN if job.bucket is not None else None,
        heartbeat_timeout=timedelta(seconds=job.heartbeat),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=2), backoff_coefficient=2.0, maximum_interval=timedelta(minutes=10)
        ),
    )
    return answer


@workflow.defn(name=jobs.SLOTS)
class SlotsWorkflow:
    """The slots of a bucket.

    At most `limit` runs hold a slot at a time, on all hosts together. Runs get slots in the order of their requests.

    The workflow survives restarts of the engine and control, and the end of every holder. Regular checks find holders
    that ended without a release.
    """

    @workflow.init
    def __init__(self, state: jobs.SlotsState) -> None:
        self._state = state
        self._is_changed = True
        self._is_closed = False

    @workflow.signal
    def acquire(self, workflow_id: str) -> None:
        """Add the run to the waiting runs. A run that already has a slot is notified again."""
        state = self._state
        if workflow_id in state.holders:
            # The first message to the run may have been lost.
            self._change(holders=tuple(one for one in state.holders if one != workflow_id))
            self._change(waiting=(workflow_id, *state.waiting))
        elif workflow_id not in state.waiting:
            self._change(waiting=(*state.waiting, workflow_id))

    @workflow.signal
    def release(self, workflow_id: str) -> None:
        """Take back the run's slot."""
        self._change(
            holders=tuple(one for one in self._state.holders if one != workflow_id),
            waiting=tuple(one for one in self._state.waiting if one != workflow_id),
        )

    @workflow.signal
    def resize(self, limit: int) -> None:
        """Change the limit. A run that holds a slot keeps the slot."""
        self._change(limit=max(1, min(1000, limit)))
        workflow.upsert_memo({LIMIT: self._state.limit})

    @workflow.signal
    def close(self) -> None:
        """End the slots. Waiting runs create new slots."""
        self._is_closed = self._is_changed = True

    @workflow.query
    def state(self) -> jobs.SlotsState:
        """Return the holders and the waiting runs."""
        return self._state

    @workflow.run
    async def run(self, state: jobs.SlotsState) -> None:  # noqa: ARG002 - __init__ has it
        """Grant slots until there are too many events, then continue as a new run."""
        workflow.upsert_memo({LIMIT: self._state.limit})
        while not self._is_closed:
            await self._grant()
            # If the slots were closed, no new run may start, because it would not know this.
            if _is_long() and not self._is_closed:
                workflow.continue_as_new(self._state)
            try:
                waits = _LOOK_AT_HOLDERS if self._state.waiting else None
                await workflow.wait_condition(lambda: self._is_changed, timeout=waits)
            except TimeoutError:
                await self._look_at_holders()

    def _change(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        self._is_changed = True

    async def _grant(self) -> None:
        self._is_changed = False
        while self._state.waiting and len(self._state.holders) < self._state.limit:
            first, *others = self._state.waiting
            holders = (*self._state.holders, first)
            self._change(waiting=tuple(others), holders=holders, most=max(self._state.most, len(holders)))
            try:
                await workflow.get_external_workflow_handle(first).signal("granted")
            except FailureError:
                self.release(first)

    async def _look_at_holders(self) -> None:
        """Take back the slots of runs that ended without a release."""
        gone: list[str] = await workflow.execute_activity(
            CLOSED,
            list(self._state.holders),
            result_type=list[str],
            start_to_close_timeout=_ASKED,
            task_queue=jobs.CONTROL,
        )
        for workflow_id in gone:
            self.release(workflow_id)


def _is_long() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= _MOST_EVENTS
