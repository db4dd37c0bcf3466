"""A host with a running virtual machine whose disks can be backed up."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import machine_pool
from tests.unit.support.events import Recorder
from tests.unit.support.guests import FakeGuard, MemoryGuests
from tests.unit.support.machine_pool import MachinePool
from zsnapdb.config import settings as config
from zsnapdb.jobs.backup import source_interface as sources
from zsnapdb.jobs.backup.source_interface import ProvedSet
from zsnapdb.jobs.backup.vm_source import MachineProof, MachineSource
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.planning.vm.domain import parse
from zsnapdb.vm.hypervisor import MachineState

GOLD = (Path(__file__).parents[1] / "planning" / "vm" / "golden" / "base.xml").read_text()
UUID = parse(GOLD).uuid
DISKS = {"vda": "tank/vms/gold", "vdb": "tank/vms/gold-data"}
SET = "20261122T120000Z-0001"


@dataclass
class Barn:
    """A host with the running machine `gold` on two zvols, which has a guest agent."""

    pool: MachinePool
    guests: MemoryGuests
    guard: FakeGuard
    folder: Path
    reported: list[str]
    frozen_at_snapshot: list[bool]

    def source(self, **settings: Any) -> MachineSource:
        lines = "".join(f"{key} = {value!r}\n" for key, value in settings.items())
        text = (
            f'[instance.web]\nrepository = "r"\n[instance.web.vm]\ndomain = "gold"\n{lines}'
            '[repository.r]\nurl = "file:///nowhere"\n'
        )
        host = replace(THIS_HOST, run=self.folder / "run")
        instance = replace(Instance.of(config.parse(text, "test"), "web"), host=host)
        assert instance.settings.vm is not None
        return MachineSource(instance, instance.settings.vm, self.guests, self.guard.open)  # type: ignore[arg-type]

    def take(self, **settings: Any) -> ProvedSet[MachineProof]:
        source = self.source(**settings)
        return sources.take(source, source.observe(), "web", SET, Recorder(self.reported), run_id="1")

    def grade(self, **settings: Any) -> Grade:
        return self.take(**settings).proof.hold.reached.grade

    def snapshots(self) -> list[str]:
        return [name for name in self.pool.things if f"@zsnapdb-{SET}" in name]


def make_barn(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Barn:
    """Return such a host. Its disks and guests are simulated until the test ends."""
    pool, _ = machine_pool.install(monkeypatch, folder)
    guests, reported, seen = MemoryGuests(), [], []  # type: ignore[var-annotated]
    pool.foreign_volume("tank/vms")
    for name in DISKS.values():
        pool.foreign_volume(name)
    guests.add(GOLD, MachineState.RUNNING)

    def run(argv: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        if argv[1] == "snapshot":
            seen.append(guests.is_frozen)
        return pool.run(argv, **more)

    monkeypatch.setattr("zsnapdb.base.program_start.run", run)
    monkeypatch.setattr("zsnapdb.zfs.zvols.is_partition", lambda path: False)
    monkeypatch.setattr("zsnapdb.zfs.explicit_settings.own_values", lambda names: {name: {} for name in names})
    monkeypatch.setattr("zsnapdb.zfs.explicit_settings.rights_on", lambda dataset: frozenset())
    monkeypatch.setattr("zsnapdb.jobs.backup.vm_source.judge_volumes_space", lambda names: [])
    return Barn(pool, guests, FakeGuard(), folder, reported, seen)
