"""Control: it runs the workflows of a fleet next to the engine. It connects to no host, and no host connects to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from zsnapdb.config.tables import EngineSettings
from zsnapdb.fleet.worker import serve_until_stopped
from zsnapdb.fleet.workflows import CLOSED, SERVED, JobWorkflow, SlotsWorkflow
from zsnapdb.planning.fleet.jobs import CONTROL, queue_of

WORKFLOWS: Sequence[type] = (JobWorkflow, SlotsWorkflow)


class ControlActivities:
    """The queries that workflows send to the engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name=CLOSED)
    async def closed(self, workflow_ids: list[str]) -> list[str]:
        """Return those of the workflows that are no longer running."""
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
    """Return the machines in these names of workers, without duplicates."""
    return sorted({one.rpartition("/")[2] for one in identities})


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the runner of workflows. It prevents actions that could differ when the history is replayed."""
    # Modules of zsnapdb are loaded once, not for each workflow, because workflows use only pure code of them.
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


def serve(settings: EngineSettings, tell: Callable[[str], None], ready: Callable[[], None]) -> None:
    """Run the workflows until SIGTERM or SIGINT. If the engine is unreachable, try again."""
    begins = f"control runs the workflows of {settings.server}, namespace {settings.namespace}"
    running = serve_until_stopped(
        settings, CONTROL, lambda client: [control_worker(client)], (begins, CONTROL), tell, ready
    )
    asyncio.run(running)
