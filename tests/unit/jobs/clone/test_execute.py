"""Clones at a point are made by the plan that was made for that point."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.clone import cached_sets, create_plan, source_fetch, space_limits, topology
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.jobs.clone.sources import RemoteBackup
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.jobs.trial import drill, rescue
from zsnapdb.planning.clone.topology import CloneTopology
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.zfs import datasets


def test_a_clone_at_a_point_is_made_by_the_plan_that_was_made_for_it(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "tank/zsnapdb/clones"
    planned = source_fetch.point_plan(host.settings, host.instance, host.instance.open_repository(), home, BACKUPS[0])
    assert planned.layout.top == f"tank/zsnapdb/received/{planned.restore_id}/c"
    host.store(BACKUPS[1])
    made = SimpleNamespace()
    used: list[RestorePlan] = []
    monkeypatch.setattr(source_fetch, "find_local", lambda *words: None)
    monkeypatch.setattr(space_limits, "reserve_set_space", lambda *words: None)
    monkeypatch.setattr(source_fetch, "run_steps", lambda work, steps, handlers: used.append(work.plan))
    monkeypatch.setattr(cached_sets, "remove_if_exists", lambda *words: None)
    monkeypatch.setattr(Copy, "remove_identity", lambda copy: None)
    for name in ("snapshot", "mount"):
        monkeypatch.setattr(source_fetch, name, lambda *words: None)
    monkeypatch.setattr(cached_sets, "find_ready_point", lambda home, set_id: made)
    for name in ("create", "unmount", "set_properties"):
        monkeypatch.setattr(datasets, name, lambda *words: None)
    repository = host.instance.open_repository()
    source: Any = source_fetch.reach(host.settings, host.instance, repository, home, planned)
    assert source is made
    assert all(plan is planned for plan in used)
    assert len(used) == 2
    assert host.plans_made == 1


def test_a_point_that_was_reached_earlier_is_not_reached_again(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    first, second = (
        source_fetch.point_plan(host.settings, host.instance, repository, "tank/zsnapdb/clones", BACKUPS[0])
        for _ in range(2)
    )
    assert first.restore_id != second.restore_id
    assert first.point_identity == second.point_identity
    made = SimpleNamespace()
    known = {first.point_identity: made}
    monkeypatch.setattr(cached_sets, "find_reached", lambda home, instance, identity: known.get(identity))
    source: Any = source_fetch.reach(host.settings, host.instance, repository, "tank/zsnapdb/clones", second)
    assert source is made


def test_a_clone_of_a_point_that_was_planned_already_is_not_planned_again(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "tank/zsnapdb/clones"
    repository = host.instance.open_repository()
    point = source_fetch.point_plan(host.settings, host.instance, repository, home, BACKUPS[0])
    monkeypatch.setattr(create_plan, "plan_for", lambda settings, instance, request, made_from: made_from.source)
    request = CloneRequest(owner="test", at="2026-11-20T10:00:00Z", point=point)
    used: Any = create_plan.plan(host.settings, host.instance, request)
    assert used is point
    assert host.plans_made == 1


def test_all_clones_of_a_set_are_made_of_what_was_planned_for_the_first(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    point = source_fetch.point_plan(host.settings, host.instance, repository, "tank/zsnapdb/clones", BACKUPS[0])
    requests: list[CloneRequest] = []

    def make(settings: object, instance: object, request: CloneRequest) -> Any:
        requests.append(request)
        return SimpleNamespace(
            info=SimpleNamespace(
                backup_id="20261120T100000Z-000a",
                port=1,
                top="tank/c",
                original_key="a",
                name="a",
                label="a",
                original="20261120T100000Z-000a",
            )
        )

    monkeypatch.setattr(topology, "make_running", make)
    monkeypatch.setattr(datasets, "set_properties", lambda *words: None)
    for request, source in (
        (CloneRequest(owner="test", at="2026-11-20T10:00:00Z"), point),
        (CloneRequest(owner="test"), None),
    ):
        planned = SimpleNamespace(made_from=SimpleNamespace(source=source, set_id=BACKUPS[0]))
        monkeypatch.setattr(
            topology, "plan_set", lambda *words, plan=planned: SimpleNamespace(names=("a-1", "a-2", "a-3"), first=plan)
        )
        topology.create_set(host.settings, host.instance, request, 3, CloneTopology.INDEPENDENT)
    assert [(r.at, r.point, r.source) for r in requests] == [
        ("2026-11-20T10:00:00Z", point, "latest"),
        (None, None, "20261120T100000Z-000a"),
        (None, None, "20261120T100000Z-000a"),
        (None, None, BACKUPS[0]),
        (None, None, "20261120T100000Z-000a"),
        (None, None, "20261120T100000Z-000a"),
    ]


def planned(host: PlanningHost, job: str) -> object:
    repository = host.instance.open_repository()
    if job == "clone":
        return create_plan.plan(host.settings, host.instance, CloneRequest(owner="test", name="new"))
    if job == "rescue":
        into = rescue.destination(host.settings, into="/nowhere/new.sql", instance=None, password_file=None)
        request = rescue.RescueRequest(TableName("shop", "orders"), BACKUPS[0], into, None, None, 60.0)
        return rescue.plan(host.settings, host.instance, repository, request)
    return drill.plan(host.settings, host.instance, repository, drill.DrillRequest(BACKUPS[0], seed=1))


@pytest.mark.parametrize("job", ["clone", "rescue", "drill"])
def test_nothing_starts_the_program_of_an_upgraded_server_on_older_files(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr("zsnapdb.mysql.process.process_managers.version_of", lambda binary: "12.3.1-MariaDB")
    backup = host.instance.open_repository().manifest("main", BACKUPS[0])
    monkeypatch.setattr(create_plan, "locate", lambda *words, **named: RemoteBackup((backup,)))
    with pytest.raises(PreflightError, match="another series"):
        planned(host, job)
