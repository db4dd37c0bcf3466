"""What an operator orders names what it means; what has ended or is gone by then keeps nothing else from being done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from tests.unit.support import trial_engine
from tests.unit.support.command_line import zsnapdb
from zsnapdb.base.errors import UsageError
from zsnapdb.config.fleet_jobs import FleetInstanceSettings, FleetJobsSettings
from zsnapdb.config.services import EngineSettings, FleetVerb
from zsnapdb.fleet import operator_orders
from zsnapdb.planning.fleet.jobs import FleetJob
from zsnapdb.planning.fleet.schedule_plan import JobFilter

JOBS = FleetJobsSettings(
    engine=EngineSettings(server="127.0.0.1:7233"), instance={"main": FleetInstanceSettings(host="db1")}
)


@dataclass(frozen=True)
class Listed:
    id: str
    status: WorkflowExecutionStatus = WorkflowExecutionStatus.RUNNING
    start_time: datetime = datetime(2026, 11, 27, tzinfo=UTC)
    close_time: None = None

    async def memo_value(self, _key: str, _default: str) -> str:
        return FleetJob(verb=FleetVerb.BACKUP, instance="main", host="db1").model_dump_json()


@dataclass
class LateList:
    """An engine whose list still has runs that have ended."""

    ended: frozenset[str]
    cancelled: list[str] = field(default_factory=list)

    async def list_schedules(self) -> AsyncIterator[Any]:
        schedules: tuple[Any, ...] = ()

        async def none() -> AsyncIterator[Any]:
            for one in schedules:
                yield one

        return none()

    async def list_workflows(self, _query: str, limit: int) -> AsyncIterator[Listed]:
        for name in ("one", "two", "three")[:limit]:
            yield Listed(name)

    def get_workflow_handle(self, name: str) -> Any:
        known = self

        class Handle:
            async def cancel(self) -> None:
                if name in known.ended:
                    raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
                known.cancelled.append(name)

        return Handle()


@pytest.mark.parametrize("words", [("run", "backup"), ("cancel",), ("pause", "--reason", "x"), ("resume",)])
def test_nothing_is_done_to_the_whole_fleet_unless_that_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    jobs = trial_engine.jobs_file(tmp_path, 1)
    command = ("fleet", *words, "--jobs", str(jobs))
    for more, said in (((), "no jobs of the fleet"), (("--all", "--where", "host=db1"), "exclude each other")):
        done = zsnapdb(*command, *more)
        assert (done.returncode, said in done.stderr) == (2, True)
        assert "hint: add --where, such as `--where instance=shop`, or --all" in done.stderr
    # Both ways that the hint names get as far as the jobs and the engine, which is not there.
    assert "cannot be reached" in zsnapdb(*command, "--all").stderr
    said = "no instance of the fleet" if words[0] == "run" else "cannot be reached"
    assert said in zsnapdb(*command, "--where", "instance=shop").stderr


def test_a_run_that_has_just_ended_keeps_no_other_from_being_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LateList(frozenset({"one"}))

    async def connect(_settings: EngineSettings, _identity: str) -> Any:
        return engine

    monkeypatch.setattr(operator_orders, "connect", connect)
    asked = operator_orders.cancel(JOBS, ())
    assert sorted(engine.cancelled) == ["three", "two"]
    assert [one.workflow_id for one in asked] == ["two", "three"]


ORDERS: dict[str, Callable[[FleetJobsSettings, list[JobFilter]], object]] = {
    "run": lambda jobs, filters: operator_orders.run(jobs, FleetVerb.BACKUP, filters, None),
    "pause": lambda jobs, filters: operator_orders.pause(jobs, filters, ""),
    "resume": lambda jobs, filters: operator_orders.resume(jobs, filters, ""),
    "cancel": operator_orders.cancel,
    "history": lambda jobs, filters: operator_orders.history(jobs, filters, 5),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("where", ["instance=nope", "host=nope", "verb=nope", "bucket=nope"])
def test_filter_that_matches_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, order: str, where: str) -> None:
    async def connect(_settings: EngineSettings, _identity: str) -> Any:
        return LateList(frozenset())

    monkeypatch.setattr(operator_orders, "connect", connect)
    with pytest.raises(UsageError, match="no instance of the fleet matches"):
        ORDERS[order](JOBS, [JobFilter.parse(where)])


@pytest.mark.parametrize("order", [operator_orders.cancel, ORDERS["history"], ORDERS["pause"], ORDERS["resume"]])
def test_filter_of_a_known_instance_may_select_nothing(
    monkeypatch: pytest.MonkeyPatch, order: Callable[[FleetJobsSettings, list[JobFilter]], object]
) -> None:
    async def connect(_settings: EngineSettings, _identity: str) -> Any:
        return LateList(frozenset())

    monkeypatch.setattr(operator_orders, "connect", connect)
    for where in ("instance=main", "host=db1", "verb=drill"):
        filters = [JobFilter.parse(where), JobFilter("verb", "d*")]
        assert order(JOBS, filters) == ()
