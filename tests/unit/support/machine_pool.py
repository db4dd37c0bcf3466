"""A pool with volumes and a libvirt with domains, both in memory, for jobs on virtual machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.clone_pool import ClonePool, Thing
from zsnapdb.base.errors import CommandError, ConsistencyError, PreflightError
from zsnapdb.config.settings import CloneSettings, MachineSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.planning.vm.domain import parse
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, KnownDomain, MachineState

HOME = "tank/zsnapdb/vms"


class MachinePool(ClonePool):
    """A pool with volumes: it simulates `zfs create -V`, `clone`, `snapshot` and `rollback`."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_devices: set[str] = set()

    def value(self, name: str, key: str) -> tuple[str, str]:
        thing = self.things[name]
        is_volume = "volsize" in thing.properties or "@" not in thing.origin != "-"
        native = {
            "type": "volume" if is_volume else "filesystem",
            "volsize": thing.properties.get("volsize", "33554432"),
            "volblocksize": "16384",
            "refreservation": "none",
            "volmode": "default",
            "available": str(100 << 30),
        }
        return (native[key], "-") if key in native else super().value(name, key)

    def foreign_volume(self, name: str) -> str:
        """Create a volume that zsnapdb does not own."""
        self.things[name] = Thing({"volsize": "33554432"})
        return name

    def _options(self, words: list[str]) -> dict[str, str]:
        return dict(words[n + 1].split("=", 1) for n, word in enumerate(words) if word == "-o")

    def _create(self, words: list[str]) -> str:
        name, properties = words[-1], self._options(words)
        if name in self.things:
            raise ValueError(f"cannot create '{name}': dataset already exists")
        if "-V" in words:
            properties["volsize"] = words[words.index("-V") + 1]
        above = name.rpartition("/")[0]
        _ = self.things[above] if above else None
        self.things[name] = Thing(properties)
        return ""

    def _clone(self, words: list[str]) -> str:
        base, name = words[-2:]
        size = self.things[base.partition("@")[0]].properties["volsize"]
        if name in self.things:
            raise ValueError(f"cannot create '{name}': dataset already exists")
        self.things[name] = Thing({**self._options(words), "volsize": size}, base)
        return ""

    def _snapshot(self, words: list[str]) -> str:
        self.txg += 1
        properties = self._options(words)
        for name in (word for word in words if "@" in word and "=" not in word):
            self.things[name] = Thing(dict(properties), txg=self.txg)
        return ""

    def _set(self, words: list[str]) -> str:
        values = dict(word.split("=", 1) for word in words if "=" in word)
        for name in (word for word in words if "=" not in word):
            self.things[name].properties.update(values)
        return ""

    def _hold(self, words: list[str]) -> str:
        _ = [self.things[name] for name in words[1:]]
        return ""

    def _release(self, words: list[str]) -> str:
        return self._hold(words)

    def _receive(self, words: list[str]) -> str:
        option, name = words
        assert (option, self.things[name].properties.pop("receive_resume_token")[:2]) == ("-A", "1-")
        if len(list(self.below(name))) == 1:
            del self.things[name]
        return ""

    def _rollback(self, words: list[str]) -> str:
        _ = self.things[words[-1]]
        return ""

    def device(self, path: Path) -> str | None:
        """Return the dataset of a device, from the link's name, unless the test removed it."""
        dataset = str(path).removeprefix("/dev/zvol/")
        return dataset if dataset in self.things and dataset not in self.lost_devices else None

    def wait_for_device(self, dataset: str, patience: float) -> Path:
        """Return the link of a device immediately."""
        path = Path("/dev/zvol") / dataset
        if self.device(path) is None:
            raise ConsistencyError(f"the device node {path} is not there after {patience:g} s")
        return path


class MemoryHypervisor:
    """A libvirt whose domains are texts. It fails where the test requires it."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, MachineState]] = {}
        self.fails_at: set[str] = set()
        self.names = ["default"]

    def add(self, xml: str, state: MachineState = MachineState.OFF) -> None:
        """Define a domain that zsnapdb does not own."""
        self.known[parse(xml).uuid] = (xml, state)

    def _step(self, verb: str, uuid: str = "") -> None:
        name = parse(self.known[uuid][0]).name if uuid in self.known else ""
        if self.fails_at & {verb, f"{verb} {name}"}:
            raise CommandError(f"{verb} {name} failed")

    def domains(self) -> list[KnownDomain]:
        return [KnownDomain(parse(xml), xml, state) for xml, state in self.known.values()]

    def find(self, uuid: str) -> KnownDomain | None:
        known = self.known.get(uuid)
        return None if known is None else KnownDomain(parse(known[0]), *known)

    def named(self, name: str) -> KnownDomain:
        for known in self.domains():
            if known.domain.name == name:
                return known
        raise PreflightError(f"no domain {name}")

    def define(self, xml: str) -> None:
        self.known[parse(xml).uuid] = (xml, MachineState.OFF)
        self._step("define", parse(xml).uuid)

    def start(self, uuid: str) -> None:
        self._step("start", uuid)
        self.known[uuid] = (self.known[uuid][0], MachineState.RUNNING)

    def power_off(self, uuid: str) -> None:
        self._step("power_off", uuid)
        if uuid in self.known:
            self.known[uuid] = (self.known[uuid][0], MachineState.OFF)

    def shut_down(self, uuid: str, patience: float) -> bool:
        return False

    def undefine(self, uuid: str) -> None:
        self._step("undefine", uuid)
        self.known.pop(uuid, None)

    def agent_answers(self, uuid: str) -> bool:
        return True

    def addresses(self, uuid: str) -> tuple[str, ...]:
        return ("10.0.0.7",)

    def networks(self) -> tuple[str, ...]:
        return tuple(self.names)

    def make_isolated_network(self) -> None:
        self._step("network")
        if ISOLATED_NETWORK not in self.names:
            self.names.append(ISOLATED_NETWORK)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[MachinePool, MemoryHypervisor]:
    """Let jobs on virtual machines use a pool and a libvirt in memory, with locks in the folder."""
    pool, hypervisor = MachinePool(), MemoryHypervisor()
    pool.things[HOME] = Thing()
    pool.install(monkeypatch)

    @contextlib.contextmanager
    def connected(uri: str) -> Iterator[Any]:
        yield hypervisor

    for module in ("base", "create", "lifecycle", "removal"):
        monkeypatch.setattr(f"zsnapdb.jobs.vm.{module}.connected", connected)
    monkeypatch.setattr("zsnapdb.zfs.zvols.dataset_behind", pool.device)
    monkeypatch.setattr("zsnapdb.zfs.zvols.wait_for_device", pool.wait_for_device)
    monkeypatch.setattr("zsnapdb.zfs.libzfs.load", lambda: None)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=folder / "run"))
    return pool, hypervisor


def settings(folder: Path, **clones: Any) -> Settings:
    """Return settings with files in the folder."""
    return Settings.model_construct(
        instance={},
        repository={},
        clones=CloneSettings(**clones),
        vms=MachineSettings(dataset=HOME, folder=folder / "vms", start_timeout=1, device_timeout=1),
    )
