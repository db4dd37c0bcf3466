"""What is listed can be a moment old: what has ended or is gone by then keeps nothing else from being done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from zsnapdb.config.engine import EngineSettings, FleetVerb
from zsnapdb.config.fleet_jobs import FleetInstanceSettings, FleetJobsSettings
from zsnapdb.fleet import orders
from zsnapdb.planning.fleet.messages import FleetJob

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


def test_a_run_that_has_just_ended_keeps_no_other_from_being_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LateList(frozenset({"one"}))

    async def connect(_settings: EngineSettings, _identity: str) -> Any:
        return engine

    monkeypatch.setattr(orders, "connect", connect)
    asked = orders.cancel(JOBS, ())
    assert sorted(engine.cancelled) == ["three", "two"]
    assert [one.workflow_id for one in asked] == ["two", "three"]
