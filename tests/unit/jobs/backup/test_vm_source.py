"""A machine as a source: one snapshot of all its disks, the grade that was reached, and no guest that stays frozen."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.support.barn import DISKS, GOLD, UUID, Barn
from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import CommandTimeout, ConfigError, ConsistencyError, PreflightError
from zsnapdb.config import settings as config
from zsnapdb.documents.backup import ManifestFields
from zsnapdb.jobs.backup import guest_freeze
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.report.backup import detail_lines, result_lines
from zsnapdb.repository.manifest import Manifest, RightPart, SitePart, ZvolType
from zsnapdb.repository.manifest_source import MachineSourcePart
from zsnapdb.vm import guest_agent
from zsnapdb.vm.hypervisor import MachineState
from zsnapdb.zfs import explicit_settings
from zsnapdb.zfs.explicit_settings import Right


def test_a_running_machine_is_frozen_for_its_snapshot_and_its_grade_says_so(barn: Barn) -> None:
    taken = barn.take()
    assert (barn.frozen_at_snapshot, barn.guests.is_frozen) == ([True], False)
    assert barn.guard.told == ["opened 5", "freezing", "thawed"]
    assert taken.proof.properties == {"zsnapdb:grade": "frozen"}
    assert [barn.pool.things[name].properties["zsnapdb:grade"] for name in barn.snapshots()] == ["frozen", "frozen"]
    assert any("2 file systems frozen" in line and "/var/lib/mysql" in line for line in barn.reported)
    assert guest_freeze.marked(barn.source().instance) is None


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda barn: barn.guests.refuses.add("status"), "does not answer"),
        (lambda barn: barn.guests.refuses.add("freeze"), "was not frozen: the agent refuses"),
        (lambda barn: barn.guests.hangs.add("freeze"), "was not frozen: the agent does not answer"),
        (lambda barn: setattr(barn.guests, "count", 0), "froze no file system"),
        (lambda barn: setattr(barn.guard, "fails", True), "the guard did not start"),
    ],
)
def test_a_guest_that_is_not_frozen_gives_the_grade_crash_with_a_warning_and_is_never_left_frozen(
    barn: Barn, prepare: Callable[[Barn], None], reason: str
) -> None:
    prepare(barn)
    taken = barn.take()
    assert taken.proof.hold.reached.grade is Grade.CRASH
    assert reason in taken.proof.hold.reached.reason
    assert any(reason in line for line in barn.reported)
    assert not barn.guests.is_frozen
    assert barn.frozen_at_snapshot in ([False], [True])


@pytest.mark.parametrize("fault", ["freeze", "status"])
def test_below_the_minimum_nothing_is_snapshotted_and_nothing_stays_frozen(barn: Barn, fault: str) -> None:
    barn.guests.hangs.add(fault)
    barn.guests.refuses.add("status" if fault == "status" else "nothing")
    with pytest.raises(ConsistencyError, match="grade crash, below minimum_grade = frozen") as refused:
        barn.take(minimum_grade="frozen")
    assert "qemu-guest-agent" in refused.value.hint
    assert (barn.snapshots(), barn.frozen_at_snapshot, barn.guests.is_frozen) == ([], [], False)


def test_a_guest_that_thaws_before_the_snapshot_is_there_is_a_crash(
    barn: Barn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def thaws(argv: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        if argv[1] == "snapshot":
            barn.guests.is_frozen = False
        return barn.pool.run(argv, **more)

    monkeypatch.setattr("zsnapdb.base.program_start.run", thaws)
    with pytest.raises(ConsistencyError, match="its agent thawed 0 of 2 file systems"):
        barn.take(minimum_grade="frozen")
    assert barn.snapshots() == []


def test_a_thaw_that_a_hook_in_the_guest_fails_is_a_crash_and_its_reason_is_told(barn: Barn) -> None:
    barn.guests.failing_hook = "the lock was lost before"
    taken = barn.take()
    assert taken.proof.hold.reached.grade is Grade.CRASH
    assert "thawed 0 of 2 file systems (the lock was lost before)" in taken.proof.hold.reached.reason


def test_a_thaw_that_is_answered_late_is_no_lost_freeze(barn: Barn) -> None:
    barn.guests.deaf_thaws = 1
    assert barn.grade(minimum_grade="frozen") is Grade.FROZEN


def test_while_the_guard_of_an_earlier_run_still_thaws_nothing_is_frozen(
    barn: Barn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_freeze, "_EARLIER_GUARD_SECONDS", 0.0)
    with exclusive(f"thaw-guard-{UUID}", doing="thawing", folder=barn.source().instance.host.run):
        taken = barn.take()
    assert taken.proof.hold.reached.grade is Grade.CRASH
    assert "is thawing" in taken.proof.hold.reached.reason
    assert "freeze" not in barn.guests.asked


def test_somebody_elses_freeze_is_left_alone(barn: Barn) -> None:
    barn.guests.is_frozen = True
    assert barn.grade() is Grade.CRASH
    assert barn.guests.is_frozen
    assert set(barn.guests.asked) == {"status"}


def test_without_a_deadline_the_guest_is_never_asked(barn: Barn) -> None:
    assert barn.grade(freeze_deadline="0s") is Grade.CRASH
    assert barn.guests.asked == []


def test_a_machine_that_its_guest_shut_down_is_quiesced_and_any_other_that_is_off_is_a_crash(barn: Barn) -> None:
    barn.guests.known[UUID] = (GOLD, MachineState.OFF)
    assert barn.grade() is Grade.CRASH
    with pytest.raises(PreflightError, match="is off: at best the grade crash, below minimum_grade = quiesced"):
        barn.grade(minimum_grade="quiesced")
    barn.guests.ended_itself = True
    barn.pool.things = {name: thing for name, thing in barn.pool.things.items() if "@" not in name}
    assert barn.grade(minimum_grade="quiesced") is Grade.QUIESCED


def test_a_thaw_that_is_not_confirmed_fails_and_the_next_run_thaws(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_freeze, "_THAW_SECONDS", 0.0)
    barn.guests.deaf_thaws = 1
    with pytest.raises(CommandTimeout, match="does not confirm"):
        barn.take()
    assert (barn.guests.is_frozen, barn.guard.told) == (True, ["opened 5", "freezing"])
    assert barn.snapshots() == []
    warning = barn.source().recover()
    assert warning is not None
    assert "left the guest's file systems frozen; zsnapdb thawed them" in warning
    assert not barn.guests.is_frozen
    assert barn.source().recover() is None


def test_a_mark_of_a_machine_that_is_off_is_removed(barn: Barn) -> None:
    source = barn.source()
    mark = source.instance.host.run / "freeze-web"
    mark.parent.mkdir()
    mark.write_text(UUID)
    barn.guests.known[UUID] = (GOLD, MachineState.OFF)
    assert source.recover() is None
    assert not mark.exists()
    mark.write_text("../../etc")
    assert source.recover() is None


def test_a_machine_that_runs_with_another_disk_is_refused_before_anything_is_frozen(barn: Barn) -> None:
    barn.guests.running_xml = GOLD.replace("/dev/zvol/tank/vms/gold-data", "/dev/zvol/tank/other")
    barn.pool.foreign_volume("tank/other")
    with pytest.raises(PreflightError, match="runs with other disks than its configuration has: vdb"):
        barn.take()
    assert barn.guests.asked == []


def test_the_manifest_says_what_was_frozen_and_is_read_again_by_its_form(
    barn: Barn, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {DISKS["vda"]: {"com.sun:auto-snapshot": "true", "refreservation": "33554432"}, DISKS["vdb"]: {}}
    monkeypatch.setattr(explicit_settings, "own_values", lambda names: {name: own[name] for name in names})
    given = [Right("local", "user", "daemon", "snapshot")]
    monkeypatch.setattr(explicit_settings, "rights_on", lambda dataset: given if dataset == DISKS["vda"] else [])
    source = barn.source()
    taken = barn.take()
    described = source.describe(source.observe(), taken.proof)
    site = SitePart(
        properties=own[DISKS["vda"]],
        rights=(RightPart(scope="local", who="user", name="daemon", permission="snapshot"),),
    )
    assert described.volumes == {
        "vda": ZvolType(volsize=33554432, volblocksize=16384, properties={}, site=site),
        "vdb": ZvolType(volsize=33554432, volblocksize=16384, properties={}, site=SitePart()),
    }
    part = described.source
    assert isinstance(part, MachineSourcePart)
    assert (part.domain, part.uuid, part.grade) == ("gold", UUID, Grade.FROZEN)
    assert (part.freeze is not None and part.freeze.mount_points) == ("/", "/var/lib/mysql")
    read = MachineSourcePart.model_validate_json(part.model_dump_json())
    assert read == part
    assert read.summary().xml is None
    shown = ManifestFields.of_result(manifest().model_copy(update={"source": part})).json_fields()
    assert (shown["grade"], shown["domain"]) == ("frozen", {"name": "gold", "uuid": UUID})
    assert (shown["server"], shown["server_inside"], shown["channels"]) == (None, None, [])
    assert "grade     frozen: the guest agent held 2 file systems frozen" in detail_lines(part)
    assert result_lines(part)[0] == f"  machine   gold ({UUID})"
    for wrong in ({"xml": "<network/>"}, {"uuid": "x"}, {"domain": "a/b"}, {"grade": "perfect"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MachineSourcePart.model_validate({**part.model_dump(), **wrong})
    assert Manifest.model_fields["source"] is not None


def test_a_thaw_is_tried_again_until_the_agent_confirms_it(barn: Barn) -> None:
    barn.guests.is_frozen, barn.guests.deaf_thaws = True, 3
    pauses: list[float] = []
    guest_agent.thaw(barn.guests, UUID, 60.0, pauses.append)
    assert (barn.guests.is_frozen, len(pauses)) == (False, 3)


def test_a_minimum_that_cannot_be_reached_is_refused_before_anything_is_done(barn: Barn) -> None:
    for settings in ({"minimum_grade": "quiesced"}, {"minimum_grade": "frozen"}):
        if settings["minimum_grade"] == "frozen":
            barn.guests.known[UUID] = (GOLD.replace("org.qemu.guest_agent.0", "other"), MachineState.RUNNING)
        with pytest.raises(PreflightError, match="below minimum_grade"):
            barn.take(**settings)
    assert (barn.guests.asked, barn.frozen_at_snapshot) == ([], [])


def test_what_a_machine_uses_beside_its_disks_and_a_freeze_left_behind_are_warned_of(barn: Barn) -> None:
    passed = "<devices><hostdev mode='subsystem' type='usb'/>"
    barn.guests.known[UUID] = (GOLD.replace("<devices>", passed, 1), MachineState.RUNNING)
    run = barn.source().instance.host.run
    run.mkdir()
    (run / "freeze-web").write_text(UUID)
    warned = " ".join(barn.source().observe().warnings)
    assert "are not in the backup: device hostdev" in warned
    assert "left the guest's file systems frozen" in warned
    assert "gold_VARS.fd of gold is not in the backup" in warned


def test_an_instance_that_is_a_machine_has_no_server_to_connect_to(barn: Barn) -> None:
    instance = barn.source().instance
    with pytest.raises(PreflightError, match="instance web is the virtual machine gold"):
        instance.session()
    with pytest.raises(PreflightError, match="the virtual machine gold"):
        _ = instance.address


@pytest.mark.parametrize("more", ['socket = "/x"', 'volumes = { data = "tank/x" }'])
def test_a_machine_has_no_socket_or_volumes_in_its_configuration(more: str) -> None:
    text = f'[instance.web]\nrepository = "r"\n{more}\n[instance.web.vm]\ndomain = "gold"\n'
    with pytest.raises(ConfigError, match="its volumes are the machine's disks"):
        config.parse(f'{text}[repository.r]\nurl = "file:///nowhere"\n', "test")


def test_a_machine_may_name_the_server_inside_it_by_its_address_alone() -> None:
    text = '[instance.web]\nrepository = "r"\nhost = "10.0.0.7"\n[instance.web.vm]\ndomain = "gold"\n'
    settings = config.parse(f'{text}[repository.r]\nurl = "file:///nowhere"\n', "test")
    instance = Instance.of(settings, "web")
    assert str(instance.address_inside) == "zsnapdb@10.0.0.7:3306"
    with pytest.raises(PreflightError, match="the virtual machine gold"):
        instance.session()


def test_a_minimum_of_frozen_needs_a_freeze(barn: Barn) -> None:
    with pytest.raises(ConfigError, match="set freeze_deadline to more than 0s"):
        barn.source(minimum_grade="frozen", freeze_deadline="0s")
