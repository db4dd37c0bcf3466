"""A MariaDB server that takes the place of the old one gives no GTID a second time."""

from __future__ import annotations

import pytest

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.restore.handover_plan import Handover
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.runbook import _options
from zsnapdb.planning.restore.steps import Promote


def promoted(host: PlanningHost, to: str, server_id: int | None = None) -> Promote:
    host.datasets.add("tank/mysql")
    step = host.plan(to, handover=Handover("promote", server_id=server_id)).steps[-1]
    assert isinstance(step, Promote)
    return step


def test_an_earlier_point_needs_another_server_id(host: PlanningHost) -> None:
    assert promoted(host, BACKUPS[0]).server_id is None
    host.store(BACKUPS[1], gtids="0-1-9")
    with pytest.raises(
        PreflightError, match=r"0-1-3 to 0-1-9 stand for transactions that this restore leaves out"
    ) as no:
        promoted(host, BACKUPS[0])
    assert "--server-id" in no.value.hint
    with pytest.raises(PreflightError, match="server_id 1 is the server_id of the backup's server"):
        promoted(host, BACKUPS[0], 1)
    step = promoted(host, BACKUPS[0], 4711)
    assert step.server_id == 4711
    assert "gives it server_id 4711" in step.describe()
    assert promoted(host, "latest-backup").server_id is None
    assert host.plan(BACKUPS[0]).steps[-1].kind == "stopped"


def test_a_requested_server_id_whose_gtids_exist_after_the_point_is_refused(host: PlanningHost) -> None:
    host.store(BACKUPS[1], gtids="0-2-9")
    with pytest.raises(PreflightError, match=r"with server_id 2, .* 0-2-3 to 0-2-9 stand for transactions"):
        promoted(host, BACKUPS[0], 2)
    assert promoted(host, BACKUPS[0], 3).server_id == 3


def test_the_runbook_names_the_server_id(host: PlanningHost) -> None:
    request = RestoreRequest(BACKUPS[0], handover=Handover("promote", server_id=4711))
    host.datasets.add("tank/mysql")
    planned = host.plan(BACKUPS[0], handover=request.handover)
    assert _options(planned, request) == ("--handover", "promote", "--server-id", "4711")
