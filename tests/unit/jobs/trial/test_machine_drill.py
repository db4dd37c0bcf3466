"""A drill boots a restored machine without a network, stores what it found, and leaves nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.guests import MemoryClient
from tests.unit.support.machine_yard import Receiver, Yard, made_yard
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, PreflightError, UsageError
from zsnapdb.config.instance import HostBootSettings, VmSourceSettings
from zsnapdb.config.settings import InstanceSettings, ProbeSettings
from zsnapdb.jobs.doctor import orphan_servers
from zsnapdb.jobs.restore.machine_restore import MachineWork
from zsnapdb.jobs.trial import drill, machine_drill
from zsnapdb.jobs.trial.drill import DrillRequest, DrillResult
from zsnapdb.jobs.trial.machine_drill import MachineDrillPlan
from zsnapdb.planning.vm.domain import parse, root_of
from zsnapdb.report.trial import EvidenceView, MachineDrillPlanView
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Evidence, Outcome
from zsnapdb.repository.manifest_source import BoundPart, ServerInsidePart
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, MachineState
from zsnapdb.zfs import version

NEWEST = DrillRequest(seed=1)
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


def planned(yard: Yard, request: DrillRequest = NEWEST) -> MachineDrillPlan:
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
    ending = machine_drill.ending
    monkeypatch.setattr(machine_drill, "ending", lambda settings, _=None: ending(settings, yard.connect))
    for end in ("drill", "reap"):
        before = yard.state()
        plan = killed(yard, monkeypatch)
        xml, _ = yard.libvirt.known[plan.define.uuid]
        copy = xml.replace(plan.define.uuid, "99999999-0000-4000-8000-000000000001", 1).replace("drill-", "copy-")
        yard.libvirt.add(copy, MachineState.RUNNING)
        (leak,) = orphan_servers.leaks(yard.settings)
        assert (leak.what, leak.where, leak.instance) == (
            "machine whose drill was killed",
            plan.place.container,
            "main",
        )
        if end == "drill":
            executed(yard, planned(yard))
        else:
            assert [outcome.name for outcome in orphan_servers.plan(yard.settings)] == [plan.place.container]
            assert [outcome.error for outcome in orphan_servers.reap(yard.settings)] == [None]
        assert orphan_servers.leaks(yard.settings) == []
        assert yard.state()[0] - before[0] <= HOMES
        assert yard.libvirt.known.pop(parse(copy).uuid)[1] is MachineState.RUNNING
        assert yard.state()[1] == before[1]


def killed(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> MachineDrillPlan:
    """Return the plan of a drill that ended while the machine ran, and removed nothing."""
    plan = planned(yard)
    with monkeypatch.context() as patch:
        patch.setattr("zsnapdb.jobs.trial.scratch_datasets.remove", lambda *words: None)
        patch.setattr(yard.libvirt, "agent_answers", _die)
        with pytest.raises(KeyboardInterrupt):
            executed(yard, plan)
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
    with pytest.raises(UsageError, match="a virtual machine can be restored only to a backup"):
        planned(yard, DrillRequest("2026-11-22T00:00:00Z"))
    assert planned(yard, DrillRequest("random", seed=4)).restore.backup_id in yard.ids
    assert planned(yard, DrillRequest(yard.ids[0])).restore.backup_id == yard.ids[0]
    monkeypatch.setattr(machine_drill, "parse", lambda xml: replace(parse(xml), has_agent=False))
    with pytest.raises(PreflightError, match="no channel of a guest agent"):
        planned(yard)


SERVER = ServerInsidePart(
    flavour=Flavour.MARIADB,
    version="11.8.3-MariaDB",
    server_uuid=None,
    server_id=1,
    lock="backup-stage",
    lock_reason="it is MariaDB",
    held_ms=1.0,
    before=BoundPart(binlog_file="b.000007", binlog_offset=900, gtids="0-1-90"),
    after=BoundPart(binlog_file="b.000007", binlog_offset=990, gtids="0-1-99"),
)
PRINTED = {
    "SHOW GLOBAL VARIABLES": "version\t11.8.3-MariaDB\nserver_id\t1\nlog_bin\tON\n",
    "SHOW BINARY LOGS": "b.000007\t950\nb.000008\t330\n",
    "SHOW BINLOG EVENTS IN 'b.000008'": "b.000008\t256\tGtid_list\t1\t299\t[0-1-95]\n",
    "SELECT @@GLOBAL.gtid_binlog_pos": "0-1-120\n",
    "SELECT table_schema": (
        "app\taccounts\tBASE TABLE\tInnoDB\t\t32768\napp\tids\tSEQUENCE\tInnoDB\t\t16384\n"
        "app\ta`b\tBASE TABLE\tInnoDB\t\t16384\napp\tfar\tBASE TABLE\tFEDERATED\t\t0\n"
    ),
    "CHECK TABLE `app`.`a``b`, `app`.`accounts`;": "app.accounts\tcheck\tstatus\tOK\napp.a`b\tcheck\tstatus\tOK\n",
    "SELECT SUM(balance)": "1000\n",
}
PROBES = (ProbeSettings(name="sum", sql="SELECT SUM(balance) FROM accounts;", expect=1000),)


def asked(yard: Yard, libvirt: MemoryClient, server: ServerInsidePart | None = SERVER) -> Evidence:
    """Return the evidence of a drill of a machine with this server, whose answers the libvirt has."""
    libvirt.known = yard.libvirt.known
    yard.libvirt = libvirt
    client = machine_drill.client_of(None, server) or ("mariadb",)
    plan = replace(planned(yard), server=server, client=client, probes=PROBES)
    assert "compare its position" in MachineDrillPlanView(plan).text()
    return executed(yard, plan).evidence


def answering(**changes: str) -> MemoryClient:
    libvirt = MemoryClient()
    libvirt.printed = {**PRINTED, **{begin.replace("_", " "): text for begin, text in changes.items()}}
    return libvirt


def outcomes(evidence: Evidence) -> dict[str, str]:
    return {check.kind: check.outcome.value for check in evidence.checks}


def test_the_server_inside_is_asked_by_its_own_client_and_its_position_proved_by_the_bounds(yard: Yard) -> None:
    libvirt = answering()
    libvirt.errors = ["ERROR 2002 (HY000): Can't connect to local server through socket", "ERROR 2013 (HY000): Lost"]
    evidence = asked(yard, libvirt)
    assert outcomes(evidence) == dict.fromkeys(("restore", "boot", "server", "position", "table", "probe"), "passed")
    assert [check.what for check in evidence.checks if check.kind == "table"] == ["`app`.`a``b`", "`app`.`accounts`"]
    assert (evidence.server_version, evidence.position) == ("mariadb 11.8.3-MariaDB", "0-1-95")
    assert libvirt.argv[0] == ["mariadb", "--skip-ssl", "--batch", "--skip-column-names"]
    (check,) = [check for check in evidence.checks if check.kind == "position"]
    assert check.finding == "recovered to 0-1-95: all of 0-1-90, and nothing beyond 0-1-99"
    text = EvidenceView(evidence).text()
    assert f"  passed    position: {check.finding}\n" in text
    assert "  passed        2  table\n" in text
    assert [step.kind for step in evidence.steps][-4:] == ["boot", "ask", "tables", "probes"]
    assert "pages in the machine were not checked" in evidence.notes


def test_what_programs_wrote_into_a_later_binlog_of_the_drill_does_not_count(yard: Yard) -> None:
    libvirt = answering()
    libvirt.printed["SHOW BINARY LOGS"] = "b.000007\t950\nb.000008\t700\nb.000009\t330\n"
    libvirt.printed["SHOW BINLOG EVENTS IN 'b.000009'"] = "b.000009\t256\tGtid_list\t1\t299\t[0-1-120]\n"
    assert outcomes(asked(yard, libvirt))["position"] == "passed"


def test_a_server_that_lost_what_it_had_published_fails_the_drill_whatever_was_written_since(yard: Yard) -> None:
    libvirt = answering()
    libvirt.printed["SHOW BINLOG EVENTS IN 'b.000008'"] = "b.000008\t256\tGtid_list\t1\t299\t[0-1-89]\n"
    evidence = asked(yard, libvirt)
    assert (outcomes(evidence)["position"], drill.exit_code(evidence)) == ("failed", 11)


def test_an_agent_that_runs_no_programs_fails_the_drill_with_what_allows_it(yard: Yard) -> None:
    libvirt = answering()
    libvirt.refuses = "Command guest-exec has been disabled: the command is not allowed"
    evidence = asked(yard, libvirt)
    assert outcomes(evidence) == {"restore": "passed", "boot": "passed", "server": "failed"}
    (check,) = [check for check in evidence.checks if check.kind == "server"]
    assert "has been disabled" in check.finding
    assert "must not be in block-rpcs" in check.finding
    assert "the machine boots; of its server nothing is proved beyond the checks that passed" in evidence.notes


def test_a_client_that_may_not_log_in_is_not_asked_again_and_one_whose_server_stays_down_only_until_the_deadline(
    yard: Yard,
) -> None:
    for said, timeout in (("ERROR 1045 (28000): Access denied", 60.0), ("ERROR 2002 (HY000): Can't connect", 0.0)):
        libvirt = answering()
        libvirt.errors = [said] * 2
        patient = yard.settings.vms.model_copy(update={"start_timeout": timeout})
        yard.settings = yard.settings.model_copy(update={"vms": patient})
        evidence = asked(yard, libvirt)
        (check,) = [check for check in evidence.checks if check.kind == "server"]
        assert (check.outcome, said in check.finding) == (Outcome.FAILED, True)
        assert len(libvirt.argv) == 1


def test_what_a_guest_answers_in_another_form_is_no_proof(yard: Yard) -> None:
    libvirt = answering()
    libvirt.printed["SHOW BINARY LOGS"] = "b'; DROP\tx\n"
    assert outcomes(asked(yard, libvirt))["server"] == "failed"


def test_of_a_server_that_was_not_locked_the_evidence_says_that_its_position_was_not_checked(yard: Yard) -> None:
    evidence = asked(yard, answering(), None)
    assert "position" not in outcomes(evidence)
    assert evidence.outcome is Outcome.PASSED
    assert "the position was not checked: the server was not locked when it was backed up" in evidence.notes


def test_a_table_that_is_damaged_or_of_which_nothing_is_said_is_damage(yard: Yard) -> None:
    for said in ("app.accounts\tcheck\terror\tCorrupt\napp.a`b\tcheck\tstatus\tOK\n", "app.a`b\tcheck\tstatus\tOK\n"):
        libvirt = answering()
        libvirt.printed = {key: said if key.startswith("CHECK") else text for key, text in libvirt.printed.items()}
        evidence = asked(yard, libvirt)
        wrong = [check.what for check in evidence.checks if check.outcome is Outcome.DAMAGED]
        assert (wrong, drill.exit_code(evidence)) == (["`app`.`accounts`"], 7)


def test_a_wrong_answer_to_a_probe_fails_the_drill(yard: Yard) -> None:
    libvirt = answering()
    libvirt.printed["SELECT SUM(balance)"] = "999\n"
    evidence = asked(yard, libvirt)
    assert (outcomes(evidence)["position"], outcomes(evidence)["probe"]) == ("passed", "failed")


def test_however_long_the_answers_of_a_guest_are_the_evidence_is_stored(yard: Yard) -> None:
    libvirt = answering()
    heads = ",".join(f"{domain}-1-7" for domain in range(200_000))
    libvirt.printed["SHOW BINLOG EVENTS IN 'b.000008'"] = f"b.000008\t256\tGtid_list\t1\t299\t[{heads}]\n"
    libvirt.printed["SELECT SUM(balance)"] = "x" * 2_000_000
    evidence = asked(yard, libvirt)
    assert (outcomes(evidence)["position"], outcomes(evidence)["probe"]) == ("failed", "failed")
    assert len(evidence.encode()) < 100_000
