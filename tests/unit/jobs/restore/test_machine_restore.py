"""A machine is restored to new zvols and a new domain; what is not of this restore never changes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.support.machine_yard import REQUEST, TOP, Receiver, Yard, made_yard
from zsnapdb.base.errors import CommandError, DamagedError, ExistsError, NotOursError, PreflightError, UsageError
from zsnapdb.jobs.restore import machine_restore, restore_inputs, volume_receive
from zsnapdb.jobs.restore.machine_restore import MachineRestoreResult, MachineWork
from zsnapdb.jobs.steps.restore_journal import MachineJournals
from zsnapdb.planning.restore.plan import MachineRestorePlan
from zsnapdb.planning.restore.steps import DefineDomain
from zsnapdb.planning.vm.domain import parse
from zsnapdb.report.restore import MachineRestorePlanView, MachineRestoreView
from zsnapdb.repository.manifest import FilesystemType, ZvolType
from zsnapdb.stream import resume_stream
from zsnapdb.stream.download import Resumption
from zsnapdb.vm.hypervisor import MachineState
from zsnapdb.zfs.command import failure


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    return made_yard(tmp_path, monkeypatch)


def defined(result: MachineRestoreResult) -> DefineDomain:
    define = result.plan.define
    assert define is not None
    return define


def test_a_machine_comes_back_on_new_zvols_with_a_domain_of_its_own_that_does_not_run(yard: Yard) -> None:
    result = yard.restore()
    assert (result.next_step, result.plan.backup_id) == (None, yard.ids[-1])
    define = defined(result)
    xml, state = yard.libvirt.known[define.uuid]
    domain = parse(xml)
    assert (domain.name, state) == ("web-back", MachineState.OFF)
    assert {d.target: d.source for d in domain.volumes} == {
        "data": f"/dev/zvol/{TOP}/data",
        "parent": f"/dev/zvol/{TOP}/parent",
    }
    assert domain.macs != ("52:54:00:00:00:01",)
    assert "production" not in xml
    for role in ("data", "parent"):
        thing = yard.pool.things[f"{TOP}/{role}"]
        assert thing.properties["zsnapdb:restored"] == result.plan.restore_id
        assert {f"{TOP}/{role}@zsnapdb-{name}" for name in yard.ids} <= set(yard.pool.things)
    assert yard.pool.things[TOP].properties["volmode"] == "dev"
    command = f"zfs set com.sun:auto-snapshot=true {TOP}/data"
    assert result.plan.notes == (
        "the restored domain lacks os/kernel /boot/vmlinuz",
        f"set by the site where it was backed up; read it, and run it after the restore: {command}",
    )
    assert "web-back" in MachineRestoreView(result).text()
    assert command in MachineRestoreView(result).text()
    assert MachineRestoreView(result).fields()["finished"] is True


def test_a_plan_shows_the_whole_domain_and_changes_nothing(yard: Yard) -> None:
    before = yard.state()
    planned = yard.plan()
    view = MachineRestorePlanView(planned, ())
    assert yard.state() == before
    assert "grade     crash: nothing was held" in view.text()
    domain = view.fields()["domain"]
    assert domain is not None
    assert domain["xml"] == planned.define.xml if planned.define else False
    assert [step.name for step in planned.steps] == [
        "preflight",
        "make-top",
        *(f"receive-{name}-{role}" for name in yard.ids for role in ("data", "parent")),
        "check-volumes",
        "define-domain",
    ]


def test_an_older_backup_is_restored_by_its_id_and_a_point_between_backups_is_refused(yard: Yard) -> None:
    assert yard.plan(replace(REQUEST, to=yard.ids[0])).backup_id == yard.ids[0]
    for point in ("2026-11-22T00:00:00Z", "0-1-7"):
        with pytest.raises(UsageError, match="a virtual machine can be restored only to a backup"):
            yard.plan(replace(REQUEST, to=point))


def test_what_exists_is_refused_before_anything_is_made(yard: Yard) -> None:
    before = yard.state()
    with pytest.raises(ExistsError, match="libvirt has a domain web1"):
        yard.restore(replace(REQUEST, top="tank/web1"))
    with pytest.raises(ExistsError, match="target dataset tank/mysql exists"):
        yard.restore(replace(REQUEST, top="tank/mysql"))
    with pytest.raises(UsageError, match="is not a name of a virtual machine"):
        yard.restore(replace(REQUEST, top="tank/Not_A_Name"))
    assert yard.state() == before


def test_an_interrupted_restore_is_resumed_or_given_up(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    before = yard.state()
    for end in ("resume", "abandon"):
        monkeypatch.setattr(Receiver, "fails_at", f"{TOP}/parent")
        with pytest.raises(CommandError) as failed:
            yard.restore()
        assert "continue with --resume" in "".join(failed.value.__notes__)
        with pytest.raises(PreflightError, match="was started at"):
            machine_restore.MACHINE.execute(
                MachineWork(yard.settings, yard.instance, yard.instance.open_repository(), _again(yard), yard.connect)
            )
        monkeypatch.setattr(Receiver, "fails_at", None)
        if end == "abandon":
            yard.abandon()
            assert yard.state() == before
            return
        assert defined(yard.resume()).uuid in yard.libvirt.known
        _remove(yard)
        assert yard.state() == before


def token(guid: int) -> str:
    """Return what ZFS says of an interrupted full stream to this snapshot."""
    numbers = {"object": 9, "offset": 4096, "bytes": 9000, "toguid": guid}
    return f"1-0-d8-{zlib.compress(resume_stream.with_nvlist_numbers(b'', numbers)).hex()}"


@pytest.mark.parametrize("is_of_this", [True, False])
def test_what_zfs_kept_and_cannot_be_continued_is_told_and_removed(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, is_of_this: bool
) -> None:
    before = yard.state()
    step = yard.plan().receives[0]
    monkeypatch.setattr(Receiver, "fails_at", step.dataset)
    monkeypatch.setattr(Receiver, "leaves", {step.dataset: token(step.guid if is_of_this else 4711)})
    with pytest.raises(CommandError) as failed:
        yard.restore()
    # Nothing was received whole, and still there is something to continue.
    assert "continue with --resume" in "".join(failed.value.__notes__)
    monkeypatch.setattr(Receiver, "fails_at", None)
    assert defined(yard.resume()).uuid in yard.libvirt.known
    why = "has no record of object 9 at 4096" if is_of_this else "ZFS kept a part of another snapshot, with GUID 4711"
    assert any("again from its beginning" in line and why in line for line in yard.reported), yard.reported
    assert ["receive", "-A", step.dataset] in yard.pool.commands
    _remove(yard)
    assert yard.state() == before


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_rest_that_zfs_refuses_is_followed_by_the_whole_volume(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    step = yard.plan().receives[0]
    monkeypatch.setattr(Receiver, "fails_at", step.dataset)
    monkeypatch.setattr(Receiver, "leaves", {step.dataset: token(step.guid)})
    with pytest.raises(CommandError):
        yard.restore()
    monkeypatch.setattr(Receiver, "fails_at", None)
    brought: list[bool] = []
    bring = volume_receive._bring

    def refuse_the_rest(*words: Any) -> None:
        brought.append(words[-1] is not None)
        if words[-1] is not None:
            if not is_kept:
                del yard.pool.things[step.dataset]
            told = "cannot receive resume stream: kernel modules must be upgraded to receive this stream."
            raise failure(["zfs", "receive"], 1, told)
        bring(*words)

    monkeypatch.setattr(volume_receive, "_bring", refuse_the_rest)
    monkeypatch.setattr(volume_receive, "_resumption", lambda *_: Resumption(cast(Any, None), 2, 1 << 20))
    assert defined(yard.resume()).uuid in yard.libvirt.known
    assert brought[:2] == [True, False]
    assert any("continues at 1.0 MiB of" in line for line in yard.reported)
    assert any("again from its beginning" in line and "resume stream" in line for line in yard.reported)
    assert (["receive", "-A", step.dataset] in yard.pool.commands) is is_kept


def test_what_zfs_kept_goes_with_a_restore_that_is_given_up_but_not_if_it_is_of_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yard.state()
    step = yard.plan().receives[0]
    monkeypatch.setattr(Receiver, "fails_at", step.dataset)
    monkeypatch.setattr(Receiver, "leaves", {step.dataset: token(step.guid)})
    with pytest.raises(CommandError):
        yard.restore()
    mine = yard.pool.things[step.dataset].properties.pop("zsnapdb:restored")
    with pytest.raises(NotOursError):
        yard.resume()
    assert not any("again from its beginning" in line for line in yard.reported)
    assert ["receive", "-A", step.dataset] not in yard.pool.commands
    yard.pool.things[step.dataset].properties["zsnapdb:restored"] = mine
    yard.abandon()
    assert yard.state() == before


def test_a_dataset_that_lost_its_mark_with_the_power_is_named_when_the_restore_is_given_up(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = yard.plan().receives[0]
    monkeypatch.setattr(Receiver, "fails_at", step.dataset)
    monkeypatch.setattr(Receiver, "leaves", {step.dataset: token(step.guid)})
    with pytest.raises(CommandError):
        yard.restore()
    del yard.pool.things[step.dataset]
    del yard.pool.things[TOP].properties["zsnapdb:restored"]
    yard.abandon()
    assert TOP in yard.pool.things
    assert any(f"{TOP} stays" in line and f"`zfs destroy {TOP}`" in line for line in yard.reported)


def test_what_was_received_does_not_keep_the_pool_full(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in the same pool cannot write until there is room again."""
    before, steps = yard.state(), yard.plan().receives
    for step in steps[:2]:
        monkeypatch.setattr(Receiver, "fails_at", step.dataset)
        monkeypatch.setattr(Receiver, "leaves", {step.dataset: token(step.guid)})
        argv = ["zfs", "receive", "-s", "-u", step.dataset]
        full = failure(argv, 1, "cannot receive new filesystem stream: out of space")
        monkeypatch.setattr(Receiver, "error", full)
        with pytest.raises(PreflightError):
            yard.restore()
        assert any("the pool is full, so the partly received" in line for line in yard.reported)
        assert ["receive", "-A", step.dataset] in yard.pool.commands
        assert step.dataset not in yard.pool.things
        if step is steps[1]:
            # What was received whole is kept, as after any other error.
            assert steps[0].dataset in yard.pool.things
            yard.abandon()
        assert yard.state() == before


def _again(yard: Yard) -> MachineRestorePlan:
    return MachineJournals(yard.settings.restore.journal).find("main", None).plan


def _remove(yard: Yard) -> None:
    """Remove a finished restore by hand."""
    for uuid in [uuid for uuid, (xml, _) in yard.libvirt.known.items() if parse(xml).name == "web-back"]:
        yard.libvirt.known.pop(uuid)
    yard.pool.things = {n: t for n, t in yard.pool.things.items() if not n.startswith(TOP)}


def test_a_define_that_fails_is_repeated_and_a_restore_stopped_after_it_is_undone_whole(yard: Yard) -> None:
    before = yard.state()
    yard.libvirt.fails_at = {"define"}
    with pytest.raises(CommandError):
        yard.restore()
    yard.libvirt.fails_at = set()
    stopped = yard.resume(confirm=lambda step: False)
    assert stopped.next_step is not None
    assert len(yard.libvirt.known) == 2
    yard.abandon()
    assert yard.state() == before


def test_a_machine_that_somebody_started_or_replaced_is_not_removed(yard: Yard) -> None:
    yard.libvirt.fails_at = {"define"}
    with pytest.raises(CommandError):
        yard.restore()
    before = yard.state()
    uuid = next(uuid for uuid, (xml, _) in yard.libvirt.known.items() if parse(xml).name == "web-back")
    xml, _ = yard.libvirt.known[uuid]
    yard.libvirt.known[uuid] = (xml, MachineState.RUNNING)
    with pytest.raises(PreflightError, match="web-back is running"):
        yard.abandon()
    yard.libvirt.known[uuid] = (xml.replace("zsnapdb:restored restore", "zsnapdb:other restore"), MachineState.OFF)
    with pytest.raises(PreflightError, match="but not its mark"):
        yard.abandon()
    assert yard.state() == before


def test_a_zvol_of_another_size_than_the_manifest_says_is_removed_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yard.state()
    monkeypatch.setattr(Receiver, "size", 4096)
    with pytest.raises(DamagedError, match="another GUID or size"):
        yard.restore()
    assert yard.state() == before
    assert ZvolType.model_fields["volsize"] is not None


def test_a_chain_with_a_filesystem_in_it_is_refused_before_anything_is_made(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yard.state()
    repository = yard.instance.open_repository()
    first, last = (repository.manifest(yard.instance.name, backup_id) for backup_id in yard.ids)
    mounted = FilesystemType(mountpoint="/etc", properties={})
    forged = first.model_copy(
        update={"volumes": tuple(volume.model_copy(update={"type": mounted}) for volume in first.volumes)}
    )
    monkeypatch.setattr(restore_inputs, "restore_chain", lambda manifests, manifest, damaged: (forged, last))
    with pytest.raises(PreflightError, match="is a filesystem, not a zvol"):
        yard.restore()
    assert yard.state() == before


def test_a_device_that_does_not_say_its_zvol_keeps_the_domain_undefined(yard: Yard) -> None:
    yard.pool.lost_devices = {f"{TOP}/data"}
    known = set(yard.libvirt.known)
    with pytest.raises(Exception, match="device node"):
        yard.restore()
    assert set(yard.libvirt.known) == known


def test_the_zvols_are_restored_without_a_domain_if_its_description_does_not_fit_them(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fewer:
        volumes = ()

    monkeypatch.setattr(machine_restore, "parse", lambda text: Fewer())
    result = yard.restore()
    assert (result.plan.define, result.next_step) == (None, None)
    assert "no domain is defined" in result.plan.notes[0]
