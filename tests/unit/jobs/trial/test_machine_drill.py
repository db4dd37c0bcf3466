"""A drill boots a restored machine without a network, stores what it found, and leaves nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.machine_yard import Receiver, Yard, made_yard
from zsnapdb.config import InstanceSettings
from zsnapdb.config_vm import HostBootSettings, VmSourceSettings
from zsnapdb.errors import CommandError, PreflightError, UsageError
from zsnapdb.jobs import orphans
from zsnapdb.jobs.restore.machine_run import MachineWork
from zsnapdb.jobs.trial import drill, machine_drill, machine_scratch
from zsnapdb.jobs.trial.drill_log import DrillResult
from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan, MachineDrillRequest
from zsnapdb.planning.vm.domain import parse, root_of
from zsnapdb.report.trial.machine_drill import MachineDrillPlanView
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Outcome
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, MachineState
from zsnapdb.zfs import version

NEWEST = MachineDrillRequest(seed=1)
HOMES = {"tank/zsnapdb", "tank/zsnapdb/scratch", "tank/zsnapdb/scratch/main", "tank/zsnapdb/scratch/main/drill"}


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    made = made_yard(tmp_path, monkeypatch)
    monkeypatch.setattr(version, "userland", lambda: "zfs-2.3.2")
    return configured(made, VmSourceSettings(domain="web1"))


def configured(yard: Yard, machine: VmSourceSettings) -> Yard:
    settings = yard.instance.settings.model_copy(update={"vm": machine})
    instances: dict[str, InstanceSettings] = {"main": settings}
    yard.settings = yard.settings.model_copy(update={"instance": instances})
    yard.instance = replace(yard.instance, settings=settings)
    return yard


def planned(yard: Yard, request: MachineDrillRequest = NEWEST) -> MachineDrillPlan:
    return machine_drill.plan(yard.settings, yard.instance, yard.instance.open_repository(), request, yard.connect)


def executed(yard: Yard, plan: MachineDrillPlan) -> DrillResult:
    work = MachineWork(yard.settings, yard.instance, yard.instance.open_repository(), plan.restore, yard.connect)
    return machine_drill.execute(work, plan, sleep=lambda _seconds: None)


def test_a_drill_boots_the_machine_stores_the_evidence_and_leaves_nothing(yard: Yard) -> None:
    before = yard.state()
    plan = planned(yard)
    assert yard.state() == before
    done = executed(yard, plan)
    datasets, domains = yard.state()
    assert datasets - before[0] <= HOMES
    assert (before[0] - datasets, domains) == (set(), before[1])
    evidence = done.evidence
    assert (evidence.outcome, drill.exit_code(evidence), evidence.backup_id) == (Outcome.PASSED, 0, yard.ids[-1])
    assert [(check.kind, check.what) for check in evidence.checks] == [
        ("restore", yard.ids[-1]),
        ("boot", plan.define.domain),
    ]
    assert "have the grade crash" in evidence.checks[0].finding
    assert evidence.steps[-1].kind == "boot"
    assert drills.read(yard.instance.open_repository(), "main", evidence.drill_id) == evidence


def test_the_plan_shows_a_domain_that_is_named_after_the_drill_and_reaches_nothing(yard: Yard) -> None:
    boot = HostBootSettings(kernel="/opt/vm/vmlinuz", cmdline="quiet")
    plan = planned(configured(yard, VmSourceSettings(domain="web1", boot=boot, drill_memory=64 << 20)))
    assert plan.define.domain == f"drill-{plan.drill_id.lower()}"
    root = root_of(plan.define.xml)
    assert [link.get("state") for link in root.iterfind("devices/interface/link")] == ["down"]
    assert [source.get("network") for source in root.iterfind("devices/interface/source")] == [ISOLATED_NETWORK]
    assert (root.findtext("os/kernel"), root.findtext("os/initrd")) == ("/opt/vm/vmlinuz", None)
    assert (root.findtext("os/cmdline"), root.findtext("memory")) == ("quiet", str(64 << 20))
    text = MachineDrillPlanView(plan).text()
    assert "without a network, and wait up to 300 s for its guest agent" in text
    assert plan.restore.notes == ()


def test_a_machine_that_never_answers_has_failed_and_leaves_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yard.state()
    monkeypatch.setattr(yard.libvirt, "agent_answers", lambda uuid: False)
    plan = replace(planned(yard), patience=0.0)
    evidence = executed(yard, plan).evidence
    (check,) = [check for check in evidence.checks if check.kind == "boot"]
    assert (check.outcome, "did not answer within 0 s" in check.finding) == (Outcome.FAILED, True)
    assert drill.exit_code(evidence) == 11
    assert yard.state()[0] - before[0] <= HOMES
    assert yard.state()[1] == before[1]


def test_a_libvirt_that_starts_no_machine_says_nothing_about_the_backup(yard: Yard) -> None:
    before = yard.state()
    plan = planned(yard)
    yard.libvirt.fails_at = {f"start {plan.define.domain}"}
    with pytest.raises(CommandError):
        executed(yard, plan)
    assert drills.ids(yard.instance.open_repository(), "main") == []
    assert yard.state()[0] - before[0] <= HOMES
    assert yard.state()[1] == before[1]


def test_what_a_killed_drill_left_is_named_and_the_next_drill_and_reap_remove_it_and_no_copy_of_its_domain(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = machine_scratch.ending
    monkeypatch.setattr(machine_scratch, "ending", lambda settings, _=None: ending(settings, yard.connect))
    for end in ("drill", "reap"):
        before = yard.state()
        plan = killed(yard, monkeypatch)
        xml, _ = yard.libvirt.known[plan.define.uuid]
        copy = xml.replace(plan.define.uuid, "99999999-0000-4000-8000-000000000001", 1).replace("drill-", "copy-")
        yard.libvirt.add(copy, MachineState.RUNNING)
        (leak,) = orphans.leaks(yard.settings)
        assert (leak.what, leak.where, leak.instance) == (
            "machine whose drill was killed",
            plan.place.container,
            "main",
        )
        if end == "drill":
            executed(yard, planned(yard))
        else:
            assert [outcome.name for outcome in orphans.plan(yard.settings)] == [plan.place.container]
            assert [outcome.error for outcome in orphans.reap(yard.settings)] == [None]
        assert orphans.leaks(yard.settings) == []
        assert yard.state()[0] - before[0] <= HOMES
        assert yard.libvirt.known.pop(parse(copy).uuid)[1] is MachineState.RUNNING
        assert yard.state()[1] == before[1]


def killed(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> MachineDrillPlan:
    """Return the plan of a drill that ended while the machine ran, and removed nothing."""
    plan = planned(yard)
    with monkeypatch.context() as patch:
        patch.setattr("zsnapdb.jobs.trial.scratch.remove", lambda *words: None)
        patch.setattr(machine_drill, "_boot", _die)
        with pytest.raises(KeyboardInterrupt):
            executed(yard, plan)
    yard.libvirt.start(plan.define.uuid)
    return plan


def _die(*words: object) -> bool:
    raise KeyboardInterrupt


def test_a_damaged_stream_is_a_failed_drill_of_a_machine_that_never_ran(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(yard)
    monkeypatch.setattr(Receiver, "fails_at", f"{plan.place.top}/parent")
    evidence = executed(yard, plan).evidence
    assert [(check.kind, check.outcome) for check in evidence.checks] == [("restore", Outcome.FAILED)]


def test_a_point_between_backups_and_a_machine_without_an_agent_are_refused(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="a virtual machine has none"):
        planned(yard, MachineDrillRequest("2026-11-22T00:00:00Z"))
    assert planned(yard, MachineDrillRequest("random", seed=4)).restore.backup_id in yard.ids
    assert planned(yard, MachineDrillRequest(yard.ids[0])).restore.backup_id == yard.ids[0]
    monkeypatch.setattr(machine_drill, "parse", lambda xml: replace(parse(xml), has_agent=False))
    with pytest.raises(PreflightError, match="no channel of a guest agent"):
        planned(yard)
