"""Answers of the engine in which optional parts are missing or unreadable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionStatus

from zsnapdb.fleet.connection import CONVERTER
from zsnapdb.fleet.engine_client import FleetEngine
from zsnapdb.planning.fleet.jobs import JOB, JobProgress
from zsnapdb.planning.fleet.schedule_plan import JobRun

SCHEDULED, STARTED = (
    PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED,
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
)


def encoded(*values: object) -> Payloads:
    return Payloads(payloads=asyncio.run(CONVERTER.encode(values)))


@dataclass(frozen=True)
class Answer:
    """A run as the engine describes it. Its result and its answer to a query are missing."""

    activities: Sequence[PendingActivityInfo] = ()
    status: WorkflowExecutionStatus | None = WorkflowExecutionStatus.RUNNING
    id: str = "run/drill/main/1"
    run_id: str = "1"
    start_time: datetime = datetime(2026, 11, 27, tzinfo=UTC)
    close_time: None = None

    @property
    def raw_description(self) -> Any:
        return SimpleNamespace(pending_activities=self.activities)

    async def memo_value(self, _key: str, default: str) -> str:
        return default

    data_converter = CONVERTER

    def get_workflow_handle(self, _name: str, **_more: Any) -> Any:
        async def describe() -> Answer:
            return self

        async def nothing(*_words: Any, **_more: Any) -> None:
            return None

        return SimpleNamespace(describe=describe, result=nothing, query=nothing)


def told(answer: Answer) -> JobRun:
    engine: Any = FleetEngine(answer)  # type: ignore[arg-type]
    run: JobRun = asyncio.run(engine.told(JobRun(answer.id, None, "running", answer.start_time, None)))
    return run


@pytest.mark.parametrize("failure", ["", "a drill of main has just begun here"])
@pytest.mark.parametrize(("state", "attempt"), [(STARTED, 1), (SCHEDULED, 2), (STARTED, 2)])
@pytest.mark.parametrize(
    "details",
    [
        None,
        Payloads(),
        Payloads(payloads=[Payload()]),
        encoded(None),
        encoded({"of": "another version"}),
        encoded("text", JobProgress(host="db1", step="sending")),
    ],
)
def test_run_without_readable_progress_is_shown(
    details: Payloads | None, state: PendingActivityState.ValueType, attempt: int, failure: str
) -> None:
    activity = PendingActivityInfo(state=state, attempt=attempt, heartbeat_details=details)
    activity.activity_type.name = JOB
    if failure:
        activity.last_failure.CopyFrom(Failure(message=failure))
    wanted = f"attempt {attempt}" + (f", the last failed: {failure}" if failure else "")
    assert told(Answer([activity])).message == wanted


def test_run_without_result_or_reason_is_shown() -> None:
    assert told(Answer()).message == "waits"
    assert told(Answer([PendingActivityInfo()])).message == "waits"
    for status in (WorkflowExecutionStatus.COMPLETED, None):
        run = told(Answer(status=status))
        assert (run.state, run.message) == ("unknown" if status is None else "completed", "")
