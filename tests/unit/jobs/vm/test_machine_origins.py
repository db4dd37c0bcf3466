"""Machines are cloned from the snapshots of a backup that are on this host; the machine itself is never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.support import machine_pool
from tests.unit.support.clone_pool import Thing
from tests.unit.support.machine_pool import HOME, MachinePool, MemoryHypervisor
from zsnapdb.base.errors import NotFound, PreflightError, UsageError, ZsnapdbError
from zsnapdb.config import settings as config
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Silent
from zsnapdb.jobs.base.host import THIS_HOST, system_now
from zsnapdb.jobs.vm import base, catalogue, create, lifecycle
from zsnapdb.jobs.vm.base import BaseRequest
from zsnapdb.jobs.vm.create import MachinesRequest, ReadyMarker
from zsnapdb.report.machines import MachinesMadeView, MachinesPlanView, MachinesView
from zsnapdb.vm.hypervisor import MachineState

GOLD = (Path(__file__).parents[2] / "planning" / "vm" / "golden" / "base.xml").read_text()
DISKS = {"vda": "tank/vms/gold", "vdb": "tank/vms/gold-data"}
CONFIG = """
[instance.web]
repository = "folder"
[instance.web.vm]
domain = "gold"
[instance.server]
socket = "/run/mysqld.sock"
user = "backup"
repository = "folder"
[instance.server.volumes]
data = "tank/mysql"
[repository.folder]
url = "file:///nowhere"
"""
OLD, NEW = "20260101T000000Z-0001", "20260102T000000Z-0002"


@dataclass
class BackedUp:
    """A host with the running machine `gold`, which is the instance `web` with two backups."""

    settings: Settings
    pool: MachinePool
    libvirt: MemoryHypervisor
    nvram: Path

    def backup(self, backup_id: str, grade: str, *, disks: tuple[str, ...] = ("vda", "vdb")) -> None:
        self.pool.txg += 1
        marks = {"backup": backup_id, "instance": "web", "state": "stored", "grade": grade}
        for target in disks:
            properties = {f"zsnapdb:{key}": value for key, value in marks.items()}
            name = f"{DISKS[target]}@zsnapdb-{backup_id}"
            self.pool.things[name] = Thing({**properties, "volsize": "33554432"}, txg=self.pool.txg)

    def clone(self, source: str, count: int = 2) -> create.CreatedMachines:
        return create.create(self.settings, THIS_HOST, MachinesRequest(source, "ada", "copy{n}", count), Silent())

    def foreign(self) -> tuple[dict[str, dict[str, str]], object]:
        """Return all datasets that are not below our home, with their properties, and the machine's domain."""
        outside = {name: dict(thing.properties) for name, thing in self.pool.things.items() if HOME not in name}
        return outside, self.libvirt.known[self.libvirt.named("gold").domain.uuid]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BackedUp:
    pool, libvirt = machine_pool.install(monkeypatch, tmp_path)
    for name in ("tank/vms", *DISKS.values()):
        pool.foreign_volume(name)
    nvram = tmp_path / "gold_VARS.fd"
    nvram.write_bytes(b"variables")
    libvirt.add(GOLD.replace("/var/lib/libvirt/qemu/nvram/gold_VARS.fd", str(nvram)), MachineState.RUNNING)
    parsed = config.parse(CONFIG, "test")
    known = {"instance": parsed.instance, "repository": parsed.repository}
    made = BackedUp(machine_pool.settings(tmp_path).model_copy(update=known), pool, libvirt, nvram)
    made.backup(OLD, "crash")
    made.backup(NEW, "frozen")
    return made


@pytest.mark.parametrize(
    ("source", "backup_id", "grade"),
    [("web", NEW, "frozen"), ("web@latest", NEW, "frozen"), (f"web@{OLD}", OLD, "crash")],
)
def test_machines_are_cloned_from_the_named_or_newest_backup_with_its_grade(
    host: BackedUp, source: str, backup_id: str, grade: str
) -> None:
    before = host.foreign()
    made = host.clone(source)
    assert [seen.state for seen in made.machines] == [MachineState.RUNNING] * 2
    for name in ("copy1", "copy2"):
        for target, disk in DISKS.items():
            assert host.pool.things[f"{HOME}/machines/{name}/{target}"].origin == f"{disk}@zsnapdb-{backup_id}"
    (first, _) = catalogue.machines(host.settings)
    assert (first.base, first.grade) == (f"web@{backup_id}", grade)
    said = MachinesMadeView(made)
    assert f"cloned from web@{backup_id}, a backup of the grade {grade}" in said.text()
    assert (said.fields()["base"], said.fields()["grade"]) == (f"web@{backup_id}", grade)
    assert host.foreign() == before


def test_the_plan_names_the_backup_its_grade_and_its_snapshots_and_changes_nothing(host: BackedUp) -> None:
    before = set(host.pool.things)
    text = MachinesPlanView(create.plan(host.settings, THIS_HOST, MachinesRequest("web", "ada", "copy{n}"))).text()
    for words in (f"backup    web@{NEW}", "grade frozen", f"zfs clone tank/vms/gold@zsnapdb-{NEW}", "zsnapdb-isolated"):
        assert words in text
    assert set(host.pool.things) == before


def test_a_clone_of_a_machine_shares_no_identity_with_it(host: BackedUp) -> None:
    host.clone("web", 1)
    gold, copy = host.libvirt.named("gold").domain, host.libvirt.named("copy1").domain
    assert gold.uuid != copy.uuid
    assert not set(gold.macs) & set(copy.macs)
    assert not {disk.source for disk in gold.volumes} & {disk.source for disk in copy.volumes}
    assert Path(copy.nvram or "").read_bytes() == b"variables"
    assert copy.nvram != gold.nvram


def test_a_reset_of_a_clone_gives_the_disks_and_firmware_of_the_backup_again(host: BackedUp) -> None:
    host.clone("web", 1)
    own = Path(host.libvirt.named("copy1").domain.nvram or "")
    own.write_bytes(b"changed inside")
    host.nvram.write_bytes(b"changed since")
    lifecycle.reset(host.settings, "copy1", ReadyMarker()).run()
    assert own.read_bytes() == b"variables"
    rolled = [command[-1] for command in host.pool.commands if command[0] == "rollback"]
    assert rolled == [f"{HOME}/machines/copy1/{target}@zsnapdb-start" for target in DISKS]


def test_destroying_the_clones_leaves_the_machine_and_its_backups_as_they_were(host: BackedUp) -> None:
    before = host.foreign()
    host.clone("web")
    for name in ("copy1", "copy2"):
        lifecycle.destroy(host.settings, name, snapshots_may_go=False).run()
    assert host.foreign() == before
    assert not any("/machines/copy" in name for name in host.pool.things)
    assert not list((host.settings.vms.folder / "machines").iterdir())


def test_an_error_leaves_no_clone_and_the_machine_as_it_was(host: BackedUp) -> None:
    before = host.foreign()
    host.libvirt.fails_at = {"start copy2"}
    with pytest.raises(ZsnapdbError, match="failed"):
        host.clone("web")
    assert host.foreign() == before
    assert catalogue.machines(host.settings) == []


def test_a_backup_without_its_snapshots_on_this_host_is_refused_with_the_way_through_restore(host: BackedUp) -> None:
    with pytest.raises(NotFound, match="not the backup 20250101T000000Z-0003 of web") as refused:
        host.clone("web@20250101T000000Z-0003")
    assert "zsnapdb restore web" in (refused.value.hint or "")
    assert "vm base create" in (refused.value.hint or "")
    host.pool.things = {name: thing for name, thing in host.pool.things.items() if "@zsnapdb-2026" not in name}
    with pytest.raises(NotFound, match="no backup of web"):
        host.clone("web")


def test_a_backup_of_which_a_disk_lost_its_snapshot_is_not_cloned(host: BackedUp) -> None:
    del host.pool.things[f"{DISKS['vdb']}@zsnapdb-{NEW}"]
    with pytest.raises(NotFound):
        host.clone(f"web@{NEW}")
    assert host.clone("web").plan.origin.name == f"web@{OLD}"


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("server", PreflightError, "not a virtual machine"),
        ("nothing", NotFound, "no base 'nothing'"),
        ("web@yesterday", UsageError, "not the id of a backup"),
        ("web@", UsageError, "is not the name of anything"),
        ("@latest", UsageError, "is not the name of anything"),
    ],
)
def test_what_cannot_be_cloned_is_refused_with_the_reason(
    host: BackedUp, source: str, error: type[ZsnapdbError], words: str
) -> None:
    with pytest.raises(error, match=words):
        create.plan(host.settings, THIS_HOST, MachinesRequest(source, "ada", "copy{n}"))


def test_a_base_comes_before_an_instance_of_its_name_and_latest_names_the_instance(host: BackedUp) -> None:
    uuid = host.libvirt.named("gold").domain.uuid
    host.libvirt.known[uuid] = (host.libvirt.known[uuid][0], MachineState.OFF)
    base.create(host.settings, THIS_HOST, BaseRequest("web", from_domain="gold"))
    assert host.clone("web", 1).plan.origin.name == "web"
    lifecycle.destroy(host.settings, "copy1", snapshots_may_go=False).run()
    assert host.clone("web@latest", 1).plan.origin.name == f"web@{NEW}"


def test_the_list_names_the_backup_and_grade_of_each_machine(host: BackedUp) -> None:
    host.clone("web", 1)
    seen = lifecycle.listing(host.settings).copies
    assert f"web@{NEW}  frozen" in MachinesView(seen, system_now()).text()


def test_nvram_that_is_a_link_is_not_copied(tmp_path: Path) -> None:
    """The account of QEMU may own its folder, and the guest of the clone reads the copy."""
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "gold_VARS.fd").symlink_to(tmp_path / "secret")
    with pytest.raises(PreflightError, match="symbolic link"):
        create.copy_nvram(tmp_path / "gold_VARS.fd", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
