"""Runs that began under an older control go on under today's: recorded histories are replayed by today's code.

A change that makes other steps of the same events breaks a running job. `tests/unit/support/fleet_histories.py` records
new kinds; what is recorded stays.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from tests.unit.support.fleet_histories import FOLDER
from zsnapdb.fleet.connection import CONVERTER
from zsnapdb.fleet.worker import WORKFLOWS, workflow_runner
from zsnapdb.fleet.workflows import JobWorkflow
from zsnapdb.planning.fleet import jobs
from zsnapdb.planning.fleet.jobs import FleetJob, JobAnswer

HISTORIES = sorted(FOLDER.glob("*.json"))


def replayed(file: Path, workflows: Sequence[type], runner: WorkflowRunner) -> Exception | None:
    """Return how the replay of a history fails, None if the code does what was done."""

    async def replay() -> Exception | None:
        replayer = Replayer(workflows=workflows, workflow_runner=runner, data_converter=CONVERTER)
        history = WorkflowHistory.from_json(file.stem, file.read_text())
        return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure

    return asyncio.run(replay())


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
def test_todays_code_goes_on_where_a_recorded_run_stood(file: Path) -> None:
    assert replayed(file, WORKFLOWS, workflow_runner()) is None


@workflow.defn(name=jobs.JOB)
class OtherJobWorkflow(JobWorkflow):
    """A job that does one step more before all others."""

    @workflow.run
    async def run(self, job: FleetJob) -> JobAnswer:
        await asyncio.sleep(1)
        return await super().run(job)


def test_a_step_more_is_found() -> None:
    failure = replayed(FOLDER / "job.json", [OtherJobWorkflow], UnsandboxedWorkflowRunner())
    assert isinstance(failure, workflow.NondeterminismError)


def events(name: str) -> list[dict[str, Any]]:
    """Return the events of a history."""
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["events"]
    return found


def kinds(name: str) -> list[str]:
    return [one["eventType"].removeprefix("EVENT_TYPE_") for one in events(name)]


def test_the_histories_have_every_step_of_a_job_and_of_slots() -> None:
    """Else a change of a step that no history has would not be found."""
    seen = {kind for file in HISTORIES for kind in kinds(file.stem)}
    needed = {"TIMER_FIRED", "START_CHILD_WORKFLOW_EXECUTION_INITIATED", "WORKFLOW_EXECUTION_CONTINUED_AS_NEW"}
    needed |= {"WORKFLOW_EXECUTION_CANCEL_REQUESTED", "ACTIVITY_TASK_TIMED_OUT", "WORKFLOW_EXECUTION_FAILED"}
    needed |= {"WORKFLOW_EXECUTION_COMPLETED", "WORKFLOW_EXECUTION_CANCELED", "WORKFLOW_EXECUTION_SIGNALED"}
    assert needed <= seen


@pytest.mark.parametrize(
    ("name", "why"),
    [("job-that-nobody-takes", "ACTIVITY_TASK_TIMED_OUT"), ("job-that-no-host-can-do", "ACTIVITY_TASK_FAILED")],
)
def test_a_job_that_no_host_takes_gives_its_slot_back_and_says_so_in_the_end(name: str, why: str) -> None:
    """Else the jobs of a rack that is off would keep all others of their bucket waiting for a day."""
    of = "signalExternalWorkflowExecutionInitiatedEventAttributes"
    steps = [one[of]["signalName"] if of in one else kind for one, kind in zip(events(name), kinds(name), strict=True)]
    chosen = [step for step in steps if step in ("acquire", "release", why, "TIMER_FIRED", "WORKFLOW_EXECUTION_FAILED")]
    assert chosen[-5:] == ["acquire", why, "release", "TIMER_FIRED", "WORKFLOW_EXECUTION_FAILED"]
    assert '"type": "untaken"' in json.dumps(events(name)[-1])


def test_no_history_names_a_machine() -> None:
    for file in HISTORIES:
        text = file.read_text()
        assert "Traceback" not in text
        assert {one for one in ("/tmp/", "/home/", ".py") if one in text} == set()
