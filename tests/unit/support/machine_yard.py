"""A host with a repository of two backups of a machine, and a pool and a libvirt in memory."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import machine_pool
from tests.unit.support.clone_pool import Thing
from tests.unit.support.events import Recorder
from tests.unit.support.fake_sources import FakeMachine
from tests.unit.support.machine_pool import MachinePool, MemoryHypervisor
from tests.unit.support.world import World, made
from zsnapdb.base.errors import CommandError, ZsnapdbError
from zsnapdb.config.settings import MachineSettings, RestoreSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import machine_restore
from zsnapdb.jobs.restore.machine_restore import MachineRestoreRequest, MachineRestoreResult
from zsnapdb.planning.restore.plan import MachineRestorePlan
from zsnapdb.zfs import datasets

TOP = "tank/web-back"
REQUEST = MachineRestoreRequest(top=TOP)


class Receiver:
    """A `zfs receive` into the pool in memory."""

    fails_at: str | None = None
    leaves: dict[str, str] = {}  # noqa: RUF012
    """The resume token that a failed receive leaves, by dataset."""
    error: ZsnapdbError = CommandError("`zfs receive` failed")
    size = 1 << 30

    def __init__(self, pool: MachinePool, dataset: str, properties: Mapping[str, str]) -> None:
        self.pool, self.dataset, self.properties = pool, dataset, properties
        self.pipe = io.BytesIO()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def finish(self) -> None:
        if self.fails_at == self.dataset:
            if self.dataset in self.leaves:
                token = {"receive_resume_token": self.leaves[self.dataset]}
                self.pool.things[self.dataset] = Thing({**self.properties, **token})
            raise self.error
        body = self.pipe.getvalue()
        (guid,) = struct.unpack_from("<Q", body, 40)
        name = body[56:312].partition(b"\0")[0].decode().partition("@")[2]
        if self.properties:
            self.pool.things[self.dataset] = Thing({**self.properties, "volsize": str(self.size)})
        self.pool.things[f"{self.dataset}@{name}"] = Thing({}, txg=guid)


@dataclass
class Yard:
    """A host with a repository of two backups of the machine `web1`, and a foreign domain."""

    settings: Settings
    instance: Instance
    pool: MachinePool
    libvirt: MemoryHypervisor
    ids: list[str]
    reported: list[str]

    @contextlib.contextmanager
    def connect(self, uri: str) -> Iterator[Any]:
        yield self.libvirt

    def plan(self, request: MachineRestoreRequest = REQUEST) -> MachineRestorePlan:
        return machine_restore.make(
            self.settings, self.instance, self.instance.open_repository(), request, self.connect
        )

    def restore(self, request: MachineRestoreRequest = REQUEST, **more: Any) -> MachineRestoreResult:
        return machine_restore.restore(self.settings, self.instance, request, connect=self.connect, **more)

    def resume(self, **more: Any) -> MachineRestoreResult:
        return machine_restore.resume(self.settings, self.instance, None, connect=self.connect, **more)

    def abandon(self, **more: Any) -> MachineRestorePlan:
        return machine_restore.abandon(self.settings, self.instance, None, connect=self.connect, **more)

    def state(self) -> tuple[set[str], set[str]]:
        return set(self.pool.things), set(self.libvirt.known)


def made_yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    with made(tmp_path) as world:
        world.source, world.recipients = FakeMachine, ()
        ids = [world.backup().manifest.backup_id for _ in range(2)]
        instance, reported = world.instance, _reported(world)
    pool, libvirt = machine_pool.install(monkeypatch, tmp_path)
    libvirt.add("<domain><name>web1</name><uuid>99999999-2222-4333-8444-555555555555</uuid></domain>")
    monkeypatch.setattr(Receiver, "fails_at", None)
    monkeypatch.setattr(Receiver, "leaves", {})
    monkeypatch.setattr(
        "zsnapdb.jobs.restore.volume_receive.ReceiveStream",
        lambda dataset, properties, **_: Receiver(pool, dataset, properties),
    )
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(machine_restore, "judge_pool", lambda step: [])
    settings = Settings.model_construct(
        instance={},
        repository={},
        vms=MachineSettings(device_timeout=1),
        restore=RestoreSettings(journal=tmp_path / "restores"),
    )
    return Yard(settings, replace(instance, events=Recorder(reported)), pool, libvirt, ids, reported)


def _reported(world: World) -> list[str]:
    world.reported.clear()
    return world.reported
