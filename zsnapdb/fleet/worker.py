"""Workers of a fleet: a host's worker runs the host's jobs, and control runs the workflows next to the engine.

Control connects to no host, and no host connects to it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from zsnapdb.base.errors import ConfigError, UnreachableError
from zsnapdb.config.services import EngineSettings, FleetVerb, WorkerSettings
from zsnapdb.fleet.connection import connect, first_line, identity_of, machine
from zsnapdb.fleet.host_job import JobRefused, JobRunner
from zsnapdb.fleet.workflows import CLOSED, SERVED, JobWorkflow, SlotsWorkflow
from zsnapdb.planning.fleet import jobs
from zsnapdb.planning.fleet.jobs import (
    ANY,
    CONTROL,
    DRILL,
    JobAnswer,
    JobProgress,
    JobRequest,
    JobVerdict,
    is_final,
    queue_of,
    verdict,
)

_ELSEWHERE = timedelta(seconds=2)


class HostActivities:
    """The activities that a host executes."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    @activity.defn(name=jobs.JOB)
    async def job(self, request: JobRequest) -> JobAnswer:
        """Run the job.

        If it raises ApplicationError, the error's type says how the job ended, and the error's detail is the answer.
        """
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
        category=ApplicationErrorCategory.BENIGN,  # otherwise the client library logs a traceback for a normal refusal
    )


_AGAIN = 10.0
"""Seconds until the connection to an unreachable engine is tried again."""
_THROTTLE = timedelta(seconds=2)
"""Maximum delay of a progress report. The engine's answer to a report says whether the job is cancelled."""


@dataclass(frozen=True)
class HostQueue:
    """A queue that a host serves, and the maximum number of its jobs that run at once."""

    name: str
    at_once: int


def queues(own: WorkerSettings) -> tuple[HostQueue, ...]:
    """Return the queues that this host serves."""
    found = [HostQueue(queue_of(own.host), own.at_once)]
    if own.drills:
        found.append(HostQueue(DRILL, 1))
        if FleetVerb.VERIFY in own.verbs:
            found.append(HostQueue(ANY, 1))
    return tuple(found)


def workers(client: Client, runner: JobRunner, own: WorkerSettings, identity: str) -> list[Worker]:
    """Return a worker for each queue of the host."""
    activities = HostActivities(runner)
    return [
        Worker(
            client,
            task_queue=queue.name,
            activities=[activities.job],
            identity=identity,
            max_concurrent_activities=queue.at_once,
            max_concurrent_activity_task_polls=1,
            max_heartbeat_throttle_interval=_THROTTLE,
            default_heartbeat_throttle_interval=_THROTTLE,
        )
        for queue in queues(own)
    ]


def serve(own: WorkerSettings, runner: JobRunner, tell: Callable[[str], None], ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. These signals also stop the commands in progress.

    When this function returns, all commands have ended.
    """
    identity = identity_of(own.host, machine())
    begins = f"{own.host} takes jobs of {own.server}: {', '.join(queue.name for queue in queues(own))}"

    def made(client: Client) -> list[Worker]:
        return workers(client, runner, own, identity)

    asyncio.run(serve_until_stopped(own, identity, made, (begins, "this worker"), tell, ready))


async def serve_until_stopped(
    settings: EngineSettings,
    identity: str,
    made: Callable[[Client], list[Worker]],
    words: tuple[str, str],
    tell: Callable[[str], None],
    ready: Callable[[], None],
) -> None:
    """Run workers until SIGTERM or SIGINT.

    The pair `words` contains the start message and the workers' name, which an error message uses.
    """
    stop = stop_by_signals()
    ready()
    while not stop.is_set():
        try:
            client = await connect(settings, identity)
            tell(words[0])
            await until_stopped(made(client), stop)
        except (UnreachableError, ConfigError) as error:
            tell(str(error))
        except RuntimeError as error:
            tell(f"the engine of the fleet at {settings.server} refused {words[1]}: {first_line(error)}")
        await pause(stop, _AGAIN)


def stop_by_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until_stopped(running: list[Worker], stop: asyncio.Event) -> None:
    """Run the workers until the stop is set or a worker fails. When this function returns, all workers have ended.

    Raises RuntimeError if a worker failed.
    """
    tasks = [asyncio.create_task(worker.run()) for worker in running]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        # A worker that is still connecting ignores a shutdown request.
        for worker, task in zip(running, tasks, strict=True):
            if not worker.is_running:
                task.cancel()
        await asyncio.gather(*(worker.shutdown() for worker in running if worker.is_running), return_exceptions=True)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise RuntimeError(first_line(result)) from result


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for `seconds`, or until the stop is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


WORKFLOWS: Sequence[type] = (JobWorkflow, SlotsWorkflow)


class ControlActivities:
    """The queries that workflows send to the engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name=CLOSED)
    async def closed(self, workflow_ids: list[str]) -> list[str]:
        """Return the workflows that are no longer running."""
        return [one for one in workflow_ids if not await self._runs(one)]

    @activity.defn(name=SERVED)
    async def served(self, host: str) -> list[str]:
        """Return the machines that have recently requested jobs of this host."""
        asked = DescribeTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=queue_of(host)),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        )
        answer = await self._client.workflow_service.describe_task_queue(asked)
        return machines([one.identity for one in answer.pollers])

    async def _runs(self, workflow_id: str) -> bool:
        try:
            described = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return described.status is WorkflowExecutionStatus.RUNNING


def machines(identities: Sequence[str]) -> list[str]:
    """Return the machines that occur in the given worker names, without duplicates."""
    return sorted({one.rpartition("/")[2] for one in identities})


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the runner of workflows. The runner prevents actions that could differ when the history is replayed."""
    # Modules of zsnapdb are loaded only once instead of for each workflow, because workflows use only their pure code.
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("zsnapdb"))


def control_worker(client: Client) -> Worker:
    """Return the worker that runs the workflows."""
    asked = ControlActivities(client)
    return Worker(
        client,
        task_queue=CONTROL,
        workflows=WORKFLOWS,
        activities=[asked.closed, asked.served],
        workflow_runner=workflow_runner(),
    )


def serve_control(settings: EngineSettings, tell: Callable[[str], None], ready: Callable[[], None]) -> None:
    """Run the workflows until SIGTERM or SIGINT. If the engine is unreachable, try again."""
    begins = f"control runs the workflows of {settings.server}, namespace {settings.namespace}"
    running = serve_until_stopped(
        settings, CONTROL, lambda client: [control_worker(client)], (begins, CONTROL), tell, ready
    )
    asyncio.run(running)
