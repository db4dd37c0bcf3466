"""A workflow of a compromised engine: it sends any request to a host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from zsnapdb.planning.fleet.jobs import JOB


@workflow.defn
class HostileWorkflow:
    @workflow.run
    async def run(self, queue: str, request: Any) -> str:
        """Return whether the host refused."""
        try:
            await workflow.execute_activity(
                JOB,
                request,
                task_queue=queue,
                start_to_close_timeout=timedelta(seconds=20),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ActivityError as error:
            return f"refused: {error.__cause__}"
        return "done"
