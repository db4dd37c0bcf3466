"""Machines are cloned all or none; what is not ours never changes; what a killed run left is named and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import machine_pool
from tests.unit.support.machine_pool import HOME, MachinePool, MemoryHypervisor
from zsnapdb.base.errors import (
    CommandError,
    ConsistencyError,
    DamagedError,
    ExistsError,
    NotFound,
    PreflightError,
    UsageError,
    ZsnapdbError,
)
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Silent
from zsnapdb.jobs.base.host import THIS_HOST, system_now
from zsnapdb.jobs.dataset_copies.catalogue import Verb
from zsnapdb.jobs.dataset_copies.sweep import ExtraRemoval
from zsnapdb.jobs.vm import base, catalogue, create, lifecycle, removal
from zsnapdb.jobs.vm.base import BaseRequest
from zsnapdb.jobs.vm.create import MachinesRequest, ReadyMarker, ready_marker
from zsnapdb.planning.clone.lease import LeaseVerdict, stamp
from zsnapdb.planning.vm.cloud_init import GuestIdentity, image, seed_files
from zsnapdb.planning.vm.domain import parse
from zsnapdb.report.machines import MachinesMadeView, MachinesPlanView, MachinesView
from zsnapdb.vm.hypervisor import MachineState
from zsnapdb.zfs import datasets
from zsnapdb.zfs.destruction import Mark

GOLD = (Path(__file__).parents[2] / "planning" / "vm" / "golden" / "base.xml").read_text()
SOURCES = ("tank/vms/gold", "tank/vms/gold-data")


@dataclass
class House:
    """A host with a domain `gold` on two zvols, and the base `pxc` made of it."""

    settings: Settings
    pool: MachinePool
    libvirt: MemoryHypervisor

    def clone(self, count: int = 3, **more: object) -> create.CreatedMachines:
        request = MachinesRequest("pxc", "ada", "pxc{n}", count, **more)  # type: ignore[arg-type]
        return create.create(self.settings, THIS_HOST, request, Silent())

    def state(self) -> tuple[set[str], set[str]]:
        """Return all datasets and snapshots, and all domains."""
        return set(self.pool.things), set(self.libvirt.known)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> House:
    pool, libvirt = machine_pool.install(monkeypatch, tmp_path)
    pool.foreign_volume("tank/vms")
    for source in SOURCES:
        pool.foreign_volume(source)
    nvram = tmp_path / "gold_VARS.fd"
    nvram.write_bytes(b"variables")
    libvirt.add(GOLD.replace("/var/lib/libvirt/qemu/nvram/gold_VARS.fd", str(nvram)))
    made = House(machine_pool.settings(tmp_path), pool, libvirt)
    base.create(made.settings, THIS_HOST, BaseRequest("pxc", from_domain="gold"))
    return made


def test_three_clones_of_a_base_run_with_identities_and_disks_of_their_own(house: House) -> None:
    made = house.clone()
    assert [seen.machine.name for seen in made.machines] == ["pxc1", "pxc2", "pxc3"]
    assert {seen.state for seen in made.machines} == {MachineState.RUNNING}
    domains = [house.libvirt.named(name).domain for name in ("pxc1", "pxc2", "pxc3")]
    assert len({domain.uuid for domain in domains}) == 3
    assert len({mac for domain in domains for mac in domain.macs}) == 6
    assert len({disk.source for domain in domains for disk in domain.volumes}) == 6
    assert {Path(domain.nvram or "").read_bytes() for domain in domains} == {b"variables"}
    folder = house.settings.vms.folder
    assert ((folder / "machines").stat().st_mode & 0o777, (folder / "bases").stat().st_mode & 0o777) == (0o711, 0o700)
    assert all(f"{HOME}/machines/{name}/vdb" in house.pool.things for name in ("pxc1", "pxc2", "pxc3"))
    assert "zsnapdb changed nothing inside the guest" in MachinesMadeView(made).text()


def test_guests_with_cloud_init_get_an_identity_from_a_cd_which_goes_with_the_machine(house: House) -> None:
    made = house.clone(2, identity=GuestIdentity.CLOUD_INIT)
    folder = house.settings.vms.folder / "machines"
    for seen in made.machines:
        seed = folder / f"{seen.machine.name}.seed.iso"
        assert seed.read_bytes() == image(seed_files(seen.machine.name, seen.machine.uuid))
        disks = house.libvirt.named(seen.machine.name).domain.disks
        assert [disk.source for disk in disks if disk.device == "cdrom" and disk.source] == [str(seed)]
        assert seen.machine.identity is GuestIdentity.CLOUD_INIT
    said = MachinesMadeView(made)
    assert "cloud-init in the guest is given a host name" in said.text()
    assert said.fields()["identity_inside"] == "cloud-init"
    lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run()
    assert not (folder / "pxc1.seed.iso").exists()


def test_a_name_that_is_no_host_name_is_refused_with_cloud_init_before_anything_is_made(house: House) -> None:
    before = house.state()
    request = MachinesRequest("pxc", "ada", "pxc{n}-", 2, identity=GuestIdentity.CLOUD_INIT)
    with pytest.raises(UsageError, match="hyphen"):
        create.create(house.settings, THIS_HOST, request, Silent())
    assert house.state() == before


def test_a_plan_changes_nothing_and_says_what_the_clones_will_be(house: House) -> None:
    before = house.state()
    planned = create.plan(house.settings, THIS_HOST, MachinesRequest("pxc", "ada", "pxc{n}", 2))
    assert house.state() == before
    text = MachinesPlanView(planned).text()
    for words in ("volblocksize 16384", "reserves nothing (thin)", "network zsnapdb-isolated", "zfs clone", "pxc2"):
        assert words in text


VERBS: dict[str, Callable[[Settings, ReadyMarker], Verb[Any, Any, Any]]] = {
    "start": lambda settings, shows: lifecycle.start(settings, "pxc1", shows),
    "stop": lambda settings, _: lifecycle.stop(settings, "pxc1"),
    "reset": lambda settings, shows: lifecycle.reset(settings, "pxc1", shows),
    "destroy": lambda settings, _: lifecycle.destroy(settings, "pxc1", snapshots_may_go=False),
}


def _reset_died(house: House) -> None:
    house.pool.things[f"{HOME}/machines/pxc1"].properties["zsnapdb:phase"] = "changing"


def _phase_altered(house: House) -> None:
    house.pool.things[f"{HOME}/machines/pxc1"].properties["zsnapdb:phase"] = "redy"


def _snapshot_of_others(house: House) -> None:
    house.pool.snapshot(f"{HOME}/machines/pxc1/vda@sanoid")


def _bookmark(house: House) -> None:
    disk = f"{HOME}/machines/pxc1/vda"
    house.pool.things[f"{disk}#zsnapdb-20260101T000000Z"] = house.pool.things[f"{disk}@zsnapdb-start"]


def _mark_lost(house: House) -> None:
    domain = house.libvirt.named("pxc1").domain
    xml, state = house.libvirt.known[domain.uuid]
    house.libvirt.known[domain.uuid] = (xml.replace('name="pxc1" uuid', 'name="other" uuid'), state)


def _domain_gone(house: House) -> None:
    house.libvirt.known.pop(house.libvirt.named("pxc1").domain.uuid)


def _nothing(_: House) -> None:
    """Only the marker forbids the verb."""


NO_MARK, OTHERS = "not its mark", "snapshots that other programs made"
REFUSED = [
    (
        _nothing,
        {"start": "no address on the network", "stop": "", "reset": "no address on the network", "destroy": ""},
    ),
    (_reset_died, {"start": "was interrupted", "stop": "", "reset": "no address on the network", "destroy": ""}),
    (_phase_altered, dict.fromkeys(VERBS, "which is not a phase")),
    (_snapshot_of_others, {"stop": "", "reset": OTHERS, "destroy": OTHERS}),
    (_bookmark, {"stop": "", "reset": "has bookmarks"}),
    (_mark_lost, dict.fromkeys(VERBS, NO_MARK)),
    (_domain_gone, {**dict.fromkeys(("start", "stop", "reset"), "libvirt does not know"), "destroy": ""}),
]
CASES = [(name, spoil, reason) for spoil, reasons in REFUSED for name, reason in reasons.items()]


@pytest.mark.parametrize(("name", "spoil", "reason"), CASES)
def test_plan_of_machine_verb_refuses_what_its_run_refuses(
    house: House, name: str, spoil: Callable[[House], None], reason: str
) -> None:
    house.clone(1)
    spoil(house)
    before, verb = house.state(), VERBS[name](house.settings, ready_marker("server"))
    answers = []
    for way in (verb.plan, verb.run):
        try:
            way()
            answers.append("")
        except ZsnapdbError as error:
            answers.append(f"{error} {error.hint}")
            assert house.state() == before
    assert answers[0] == answers[1]
    assert reason in answers[0]
    assert bool(reason) == bool(answers[0])


@pytest.mark.parametrize("step", ["network", "define pxc2", "start pxc1", "start pxc3"])
def test_an_error_at_any_step_leaves_no_machine_at_all(house: House, step: str) -> None:
    before = house.state()
    house.libvirt.fails_at = {step}
    with pytest.raises(CommandError, match="failed"):
        house.clone()
    assert house.state()[1] == before[1]
    assert house.state()[0] - before[0] == {f"{HOME}/machines"}
    assert removal.leaks(house.settings, THIS_HOST) == []


def test_a_disk_that_cannot_be_cloned_leaves_no_machine_though_others_are_cloned_at_the_same_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, clone = house.state(), datasets.clone

    def fail(snapshot: str, guid: int, dataset: str, options: Mapping[str, str]) -> None:
        if dataset.endswith("pxc2/vdb"):
            raise CommandError("out of space")
        clone(snapshot, guid, dataset, options)

    monkeypatch.setattr("zsnapdb.zfs.datasets.clone", fail)
    with pytest.raises(CommandError, match="out of space"):
        house.clone(9)
    assert house.state()[0] - before[0] == {f"{HOME}/machines"}
    assert house.state()[1] == before[1]


def test_a_device_node_that_is_not_that_of_the_clone_is_not_used(house: House) -> None:
    before = house.state()
    house.pool.lost_devices.add(f"{HOME}/machines/pxc2/vdb")
    with pytest.raises(ConsistencyError, match="pxc2/vdb"):
        house.clone()
    assert house.state()[1] == before[1]


def test_what_a_failed_run_cannot_remove_doctor_names_and_reap_removes(house: House) -> None:
    before = house.state()
    house.libvirt.fails_at = {"start", "power_off"}
    with pytest.raises(CommandError, match="failed"):
        house.clone()
    assert [leak.where.rpartition("/")[2] for leak in removal.leaks(house.settings, THIS_HOST)] == [
        "pxc1",
        "pxc2",
        "pxc3",
    ]
    house.libvirt.fails_at = set()
    swept = removal.sweep(house.settings, THIS_HOST, act=True)
    assert [item.verdict for item in swept] == [LeaseVerdict.REAP] * 3
    assert removal.leaks(house.settings, THIS_HOST) == []
    assert house.state()[1] == before[1]


def test_a_name_of_a_foreign_domain_is_refused_and_the_domain_is_not_touched(house: House) -> None:
    foreign = GOLD.replace("<name>gold<", "<name>pxc2<").replace("11111111", "22222222")
    house.libvirt.add(foreign, MachineState.RUNNING)
    before = dict(house.libvirt.known)
    with pytest.raises(ExistsError, match="pxc2"):
        house.clone()
    assert house.libvirt.known == before


def test_a_domain_that_lost_its_mark_is_somebody_elses(house: House) -> None:
    house.clone(1)
    (uuid,) = [m.uuid for m in catalogue.machines(house.settings)]
    xml, state = house.libvirt.known[uuid]
    house.libvirt.known[uuid] = (xml.replace('name="pxc1" uuid', 'name="other" uuid'), state)
    before = house.state()
    for act in (
        lambda: lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=True).run(),
        lambda: lifecycle.stop(house.settings, "pxc1").run(),
        lambda: lifecycle.reset(house.settings, "pxc1", ReadyMarker()).run(),
    ):
        with pytest.raises(PreflightError, match="not its mark"):
            act()
    assert house.state() == before


def test_destroying_a_machine_leaves_everything_as_it_was_before_it(house: House) -> None:
    house.clone(1)
    before = house.state()
    gone = lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run()
    assert gone is not None
    left = before[0] - house.state()[0]
    assert left == {name for name in before[0] if "/machines/pxc1" in name}
    assert lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run() is None
    assert not list((house.settings.vms.folder / "machines").iterdir())


def test_a_snapshot_that_somebody_made_of_a_machine_keeps_it(house: House) -> None:
    house.clone(1)
    house.pool.snapshot(f"{HOME}/machines/pxc1/vda@mine")
    before = house.state()
    for act in (
        lambda: lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run(),
        lambda: lifecycle.reset(house.settings, "pxc1", ReadyMarker()).run(),
    ):
        with pytest.raises(PreflightError, match="vda@mine"):
            act()
    assert house.state() == before
    # A snapshot program makes them of the anchor, too.
    house.pool.snapshot(f"{HOME}/machines/pxc1@mine")
    lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=True).run()
    assert not any("/machines/pxc1" in name for name in house.pool.things)


def test_a_machine_whose_backups_left_bookmarks_is_not_reset_and_keeps_running(house: House) -> None:
    house.clone(1)
    disk = f"{HOME}/machines/pxc1/vda"
    house.pool.things[f"{disk}#zsnapdb-20260101T000000Z"] = house.pool.things[f"{disk}@zsnapdb-start"]
    before = house.state()
    with pytest.raises(PreflightError, match="bookmarks"):
        lifecycle.reset(house.settings, "pxc1", ReadyMarker()).run()
    assert house.state() == before


def test_a_base_with_machines_stays(house: House) -> None:
    house.clone(1)
    with pytest.raises(PreflightError, match="has clones"):
        base.destroy(house.settings, "pxc")
    lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run()
    base.destroy(house.settings, "pxc")
    assert base.destroy(house.settings, "pxc") is None
    assert not any("zsnapdb-base" in name or "/bases/" in name for name in house.pool.things)
    assert all(source in house.pool.things for source in SOURCES)


def test_a_reset_goes_back_to_the_disks_of_the_base_and_starts_what_ran(house: House) -> None:
    house.clone(1)
    seen = lifecycle.reset(house.settings, "pxc1", ReadyMarker()).run()
    assert seen.state is MachineState.RUNNING
    rolled = [command[-1] for command in house.pool.commands if command[0] == "rollback"]
    assert rolled == [f"{HOME}/machines/pxc1/{target}@zsnapdb-start" for target in ("vda", "vdb")]
    assert seen.machine.phase == "ready"


def test_waiting_for_a_server_that_this_host_cannot_reach_is_refused_before_anything_is_made(house: House) -> None:
    before = house.state()
    with pytest.raises(PreflightError, match="no address on the network zsnapdb-isolated"):
        house.clone(marker=ready_marker("server"))
    assert house.state() == before


def test_an_expired_machine_is_reaped_and_a_protected_one_stays(house: House) -> None:
    house.clone(2)
    past = {"zsnapdb:expires": stamp(system_now() - timedelta(hours=1))}
    for name in ("pxc1", "pxc2"):
        house.pool.things[f"{HOME}/machines/{name}"].properties |= past
    lifecycle.protect(house.settings, THIS_HOST, "pxc2", 3600)
    swept = {item.name: item.verdict for item in removal.sweep(house.settings, THIS_HOST, act=True)}
    assert swept == {"pxc1": LeaseVerdict.REAP, "pxc2": LeaseVerdict.KEEP}
    assert [machine.name for machine in catalogue.machines(house.settings)] == ["pxc2"]


def test_the_limits_of_clones_hold_for_machines_before_anything_is_made(house: House, tmp_path: Path) -> None:
    house.settings = machine_pool.settings(tmp_path, per_owner=2)
    before = house.state()
    with pytest.raises(PreflightError, match="per_owner"):
        house.clone(3)
    assert house.state() == before


def _running(house: House) -> None:
    for uuid, (xml, _) in list(house.libvirt.known.items()):
        house.libvirt.known[uuid] = (xml, MachineState.RUNNING)


def _on_a_file(house: House) -> None:
    (uuid,) = house.libvirt.known
    xml, state = house.libvirt.known[uuid]
    house.libvirt.known[uuid] = (xml.replace("/dev/zvol/tank/vms/gold-data", "/dev/sdb"), state)


def _with_a_host_device(house: House) -> None:
    (uuid,) = house.libvirt.known
    xml, state = house.libvirt.known[uuid]
    house.libvirt.known[uuid] = (xml.replace("</devices>", "<hostdev/></devices>"), state)


@pytest.mark.parametrize(
    ("change", "reason"), [(_running, "is running"), (_on_a_file, "not a zvol"), (_with_a_host_device, "hostdev")]
)
def test_a_domain_that_cannot_be_a_base_is_refused_and_nothing_changes(
    house: House, change: Callable[[House], None], reason: str
) -> None:
    change(house)
    before = house.state()
    with pytest.raises(PreflightError, match=reason):
        base.create(house.settings, THIS_HOST, BaseRequest("second", from_domain="gold"))
    assert house.state() == before


def test_a_base_that_cannot_be_finished_leaves_nothing(house: House, tmp_path: Path) -> None:
    before = house.state()
    (tmp_path / "gold_VARS.fd").unlink()
    with pytest.raises(PreflightError, match="NVRAM"):
        base.create(house.settings, THIS_HOST, BaseRequest("second", from_domain="gold"))
    assert house.state() == before


def test_the_domain_of_a_base_is_kept_whole(house: House) -> None:
    assert parse(catalogue.bases(house.settings)[0].domain_xml).macs == (
        "52:54:00:de:ad:01",
        "52:54:00:de:ad:02",
    )


@pytest.mark.parametrize("name", ["", "nothing", "../pxc"])
def test_a_base_or_machine_that_does_not_exist_is_not_there(house: House, name: str) -> None:
    with pytest.raises(ZsnapdbError):
        create.plan(house.settings, THIS_HOST, MachinesRequest(name, "ada", "pxc{n}"))
    with pytest.raises(NotFound):
        lifecycle.stop(house.settings, "nothing").run()


def expire(house: House, *names: str) -> None:
    past = stamp(system_now() - timedelta(hours=1))
    for name in names:
        datasets.set_properties(f"{HOME}/machines/{name}", {"zsnapdb:expires": past})


def test_a_machine_whose_phase_was_altered_is_named_and_kept_until_it_is_mended(house: House) -> None:
    house.clone(2)
    expire(house, "pxc1", "pxc2")
    datasets.set_properties(f"{HOME}/machines/pxc1", {"zsnapdb:phase": "redy"})
    (leak,) = removal.leaks(house.settings, THIS_HOST)
    assert ("zsnapdb:phase is 'redy'" in leak.what, leak.where) == (True, f"{HOME}/machines/pxc1")
    assert f"zfs get all {HOME}/machines/pxc1" in leak.hint
    swept = {item.name: item.verdict for item in removal.sweep(house.settings, THIS_HOST, act=True)}
    assert swept == {"pxc1": LeaseVerdict.KEEP, "pxc2": LeaseVerdict.REAP}
    with pytest.raises(ExistsError, match="a virtual machine pxc1 already exists"):
        house.clone(1)
    known = lifecycle.listing(house.settings)
    assert (
        "pxc1 cannot be read: zsnapdb:phase is 'redy'"
        in MachinesView(known.copies, system_now(), known.unreadable).text()
    )
    with pytest.raises(DamagedError, match="zsnapdb:phase is 'redy'"):
        lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run()
    datasets.set_properties(f"{HOME}/machines/pxc1", {"zsnapdb:phase": "ready"})
    lifecycle.destroy(house.settings, "pxc1", snapshots_may_go=False).run()
    assert catalogue.machines(house.settings) == []


def test_an_error_with_one_machine_does_not_end_the_sweep(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.clone(3)
    expire(house, "pxc1", "pxc2", "pxc3")
    others = removal.others

    def broken(anchor: str, mark: Mark) -> removal.ForeignSnapshots:
        if anchor.endswith("pxc1"):
            raise CommandError("zfs list ended with 1")
        return others(anchor, mark)

    monkeypatch.setattr(removal, "others", broken)
    swept = {
        item.name: (item.verdict, item.error is not None) for item in removal.sweep(house.settings, THIS_HOST, act=True)
    }
    assert swept == {
        "pxc1": (LeaseVerdict.KEEP, True),
        "pxc2": (LeaseVerdict.REAP, False),
        "pxc3": (LeaseVerdict.REAP, False),
    }


def test_snapshots_of_others_keep_an_expired_machine_unless_the_caller_lets_them_go(house: House) -> None:
    house.clone(1)
    expire(house, "pxc1")
    house.pool.snapshot(f"{HOME}/machines/pxc1/vda@sanoid")
    (kept,) = removal.sweep(house.settings, THIS_HOST, act=True)
    assert kept.error is not None
    assert "@sanoid" in kept.error.message
    (gone,) = removal.sweep(house.settings, THIS_HOST, act=True, also=[ExtraRemoval.FOREIGN_SNAPSHOTS])
    assert (gone.verdict, gone.error) == (LeaseVerdict.REAP, None)
