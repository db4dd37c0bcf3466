"""A plan that was shown is the plan that is executed, whatever comes into the repository meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.unit.support.manifests import manifest
from tests.unit.support.stored_backups import Site, id_of
from zsnapdb import config
from zsnapdb.errors import ExistsError, PreflightError
from zsnapdb.jobs import exclusion
from zsnapdb.jobs import host as jobs_host
from zsnapdb.jobs.clone import create_plan, fetch, reusable_sets, topology
from zsnapdb.jobs.clone.create_plan import CloneRequest
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.restore import plan as restore_plan
from zsnapdb.jobs.restore import run as restoring
from zsnapdb.jobs.restore.handover import HandedOver
from zsnapdb.jobs.restore.journal import Journals, RestoreJournal
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.jobs.restore.steps import Work
from zsnapdb.jobs.trial import delivery, drill, rescue, scratch
from zsnapdb.jobs.trial.rescue import Destination, RescueRequest
from zsnapdb.planning.clone.topology import CloneTopology
from zsnapdb.planning.restore.steps import Receive, RestorePlan
from zsnapdb.planning.trial.rescue import DumpFile, TableName
from zsnapdb.repository.manifest import ServerSourcePart
from zsnapdb.zfs import datasets

NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
BACKUPS = [id_of(number, NOW, 3, timedelta(days=1)) for number in range(3)]
VARIABLES = {"datadir": "/var/lib/mysql/data/", "innodb_page_size": "16384"}


@dataclass
class Host:
    """A host with a pool and no server, that notes the plans whose steps it runs."""

    site: Site
    folder: Path
    there: set[str] = field(default_factory=lambda: {"tank"})
    executed: list[RestorePlan] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    plans_made: int = 0

    @property
    def settings(self) -> config.Settings:
        restore = f'[restore]\nmount_root = "{self.folder}/mnt"\njournal = "{self.folder}/journal"\n'
        clones = f'[clones]\nmount_root = "{self.folder}/clones"\n'
        return config.parse(self.site.text() + restore + clones, "test")

    @property
    def instance(self) -> Instance:
        return self.site.instance()

    def store(self, backup_id: str) -> None:
        """Put a full backup into the repository."""
        repository = self.instance.open_or_create_repository()
        made = manifest(backup_id)
        assert isinstance(made.source, ServerSourcePart)
        server = made.source.server.model_copy(update={"variables": VARIABLES})
        source = made.source.model_copy(update={"server": server})
        repository.commit(made.model_copy(update={"repository_id": repository.id, "source": source}))

    def note(self, work: Work, step: Any) -> None:
        self.executed.append(work.plan)
        if isinstance(step, Receive):
            self.received.append(step.backup_id)

    def plan(self, to: str = "latest-backup", **named: Any) -> RestorePlan:
        request = RestoreRequest(to, **named)
        return restoring.plan(self.settings, self.instance, self.instance.open_repository(), request)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(Site(tmp_path / "store"), tmp_path)
    for name in ("run", "store"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(exclusion, "THIS_HOST", jobs_host.Host(run=tmp_path / "run"))
    monkeypatch.setattr(datasets, "exists", lambda name: name in made.there)
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr("zsnapdb.mysql.server.find_binary", lambda configured, flavour: Path("/usr/sbin/mariadbd"))
    monkeypatch.setattr("zsnapdb.mysql.server.account", lambda user: (0, 0))
    monkeypatch.setattr("zsnapdb.mysql.programs.find", lambda *words: Path("/usr/bin/program"))
    plan_one = restore_plan.make

    def make(*words: Any) -> RestorePlan:
        made.plans_made += 1
        return plan_one(*words)

    monkeypatch.setattr(restore_plan, "make", make)
    monkeypatch.setattr(fetch, "make", make)

    def remember(work: Work, step: Any) -> Any:
        made.note(work, step)
        return []

    for name in ("preflight", "make_top", "receive", "mount", "recover"):
        monkeypatch.setattr(restoring, name, remember)
    monkeypatch.setattr(restoring, "hand_over", lambda work, step: HandedOver(None))
    monkeypatch.setattr(restoring, "remove_all", lambda plan, copy: None)
    monkeypatch.setattr(scratch, "ephemeral", lambda *words: contextlib.nullcontext())
    monkeypatch.setattr("zsnapdb.zfs.version.userland", lambda: "zfs-2.3.9")
    made.store(BACKUPS[0])
    return made


def test_a_restore_executes_the_plan_that_was_shown_though_a_newer_backup_came(host: Host) -> None:
    planned = host.plan()
    host.store(BACKUPS[1])
    result = restoring.execute(
        host.settings, host.instance, host.instance.open_repository(), planned, lambda step: True
    )
    assert result.plan is planned
    assert all(plan is planned for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert host.plans_made == 1


def test_zsnapdb_restore_plans_once_and_executes_that(host: Host) -> None:
    result = restoring.restore(host.settings, host.instance, RestoreRequest("latest-backup"))
    assert host.plans_made == 1
    assert all(plan is result.plan for plan in host.executed)


def test_a_plan_whose_target_was_made_since_is_refused_and_nothing_runs(host: Host) -> None:
    planned = host.plan()
    host.there.add(planned.layout.top)
    repository = host.instance.open_repository()
    calls: list[Callable[[], object]] = [
        lambda: restoring.execute(host.settings, host.instance, repository, planned),
        lambda: restoring.execute_without_journal(host.settings, host.instance, repository, planned),
    ]
    for call in calls:
        with pytest.raises(ExistsError, match="exists"):
            call()
    assert host.executed == []


def test_a_plan_is_executed_once(host: Host) -> None:
    planned, repository = host.plan(), host.instance.open_repository()

    def stop(step: object) -> bool:
        return not isinstance(step, Receive)

    restoring.execute(host.settings, host.instance, repository, planned, stop)
    journal = Journals(host.settings.restore.journal)
    journal.write(journal.read(planned.layout.top) or RestoreJournal(planned))
    with pytest.raises(PreflightError, match="was begun at"):
        restoring.execute(host.settings, host.instance, repository, planned)


def test_a_drill_executes_the_plan_that_was_shown_though_a_newer_backup_came(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = drill.plan(host.settings, host.instance, repository, "latest-backup", seed=1, whole=True)
    host.store(BACKUPS[1])
    monkeypatch.setattr(drill, "check_pages", lambda *words: ())
    monkeypatch.setattr(drill, "_boot_and_ask", lambda *words: None)
    done = drill.execute(host.settings, host.instance, repository, shown)
    assert all(plan is shown.restore for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert done.evidence.backup_id == BACKUPS[0]
    assert host.plans_made == 1


def test_a_drill_of_a_random_backup_restores_the_one_that_was_shown(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.store(BACKUPS[1])
    repository = host.instance.open_repository()
    shown = drill.plan(host.settings, host.instance, repository, "random", seed=3, whole=True)
    host.store(BACKUPS[2])
    monkeypatch.setattr(drill, "check_pages", lambda *words: ())
    monkeypatch.setattr(drill, "_boot_and_ask", lambda *words: None)
    drill.execute(host.settings, host.instance, repository, shown)
    assert host.received == [shown.restore.backup_id]


def rescue_request(folder: Path) -> RescueRequest:
    where = Destination(DumpFile(str(folder / "dump.sql")), SecretStr(""))
    return RescueRequest(TableName("ledger", "t"), "latest-backup", where, None, None, 60.0)


def test_a_rescue_executes_the_plan_that_was_shown_though_a_newer_backup_came(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = rescue.plan(host.settings, host.instance, repository, rescue_request(host.folder))
    host.store(BACKUPS[1])
    isolated = SimpleNamespace(
        start=lambda: None, end=lambda: None, session=lambda: contextlib.nullcontext(SimpleNamespace())
    )
    monkeypatch.setattr(rescue, "Isolated", lambda *words: isolated)
    monkeypatch.setattr(delivery, "check_there", lambda *words: None)
    monkeypatch.setattr(rescue, "_deliver", lambda planned, isolated: SimpleNamespace())
    done = rescue.execute(host.settings, host.instance, repository, shown)
    assert done.plan is shown
    assert all(plan is shown.restore for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert host.plans_made == 1


def test_a_clone_at_a_point_is_made_by_the_plan_that_was_made_for_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "tank/zsnapdb/clones"
    planned = fetch.point_plan(host.settings, host.instance, host.instance.open_repository(), home, BACKUPS[0])
    assert planned.layout.top == f"tank/zsnapdb/received/{planned.restore_id}/c"
    host.store(BACKUPS[1])
    made = SimpleNamespace()
    used: list[RestorePlan] = []
    monkeypatch.setattr(fetch, "find_local", lambda *words: None)
    monkeypatch.setattr(fetch, "_receive_backups", lambda work: used.append(work.plan))
    monkeypatch.setattr(fetch, "_replay", lambda work: used.append(work.plan))
    monkeypatch.setattr(fetch, "_fresh_anchor", lambda home, set_id: f"tank/zsnapdb/received/{set_id}")
    monkeypatch.setattr(fetch, "snapshot", lambda *words: None)
    monkeypatch.setattr(reusable_sets, "find_received", lambda home, set_id: made)
    for name in ("create", "unmount", "set_properties"):
        monkeypatch.setattr(datasets, name, lambda *words: None)
    repository = host.instance.open_repository()
    source: Any = fetch.reach(host.settings, host.instance, repository, home, planned)
    assert source is made
    assert all(plan is planned for plan in used)
    assert len(used) == 2
    assert host.plans_made == 1


def test_a_clone_of_a_point_that_was_planned_already_is_not_planned_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "tank/zsnapdb/clones"
    repository = host.instance.open_repository()
    point = fetch.point_plan(host.settings, host.instance, repository, home, BACKUPS[0])
    monkeypatch.setattr(create_plan, "_plan_for", lambda settings, instance, request, made_from: made_from.source)
    request = CloneRequest(owner="test", at="2026-11-20T10:00:00Z", point=point)
    used: Any = create_plan.plan(host.settings, host.instance, request)
    assert used is point
    assert host.plans_made == 1


def test_all_clones_of_a_set_are_made_of_what_was_planned_for_the_first(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    point = fetch.point_plan(host.settings, host.instance, repository, "tank/zsnapdb/clones", BACKUPS[0])
    requests: list[CloneRequest] = []

    def make(settings: object, instance: object, request: CloneRequest) -> Any:
        requests.append(request)
        return SimpleNamespace(info=SimpleNamespace(backup_id="20261120T100000Z-000a", port=1, top="tank/c"))

    monkeypatch.setattr(topology, "make", make)
    monkeypatch.setattr(datasets, "set_properties", lambda *words: None)
    for request, source in (
        (CloneRequest(owner="test", at="2026-11-20T10:00:00Z"), point),
        (CloneRequest(owner="test"), None),
    ):
        planned = SimpleNamespace(source=source, set_id=BACKUPS[0])
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
