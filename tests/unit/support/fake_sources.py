"""Sources of a fake host: a server on filesystems, and disks on zvols without a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.jobs.backup.source_interface import SnapshotRequest, SourceDescription
from zsnapdb.jobs.base.events import Events
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.repository.manifest import FilesystemType, OtherSourcePart, SitePart, ZvolType
from zsnapdb.repository.manifest_source import MachineSourcePart

VOLUMES = {"data": "tank/mysql/data", "parent": "tank/mysql"}


class MakesSnapshots(Protocol):
    """The part of the host that its sources need."""

    def snapshot(self, request: SnapshotRequest) -> None: ...


@dataclass(frozen=True)
class FakeObservation:
    """The parts of an observation that a backup needs here."""

    volumes: dict[str, str]
    findings: tuple[FitnessFinding, ...] = ()
    warnings: tuple[str, ...] = ()
    ciphers: Mapping[str, str] = field(default_factory=dict)

    def with_findings(self, more: Iterable[FitnessFinding]) -> FakeObservation:
        return replace(self, findings=(*self.findings, *more))


@dataclass(frozen=True)
class FakeProof:
    """The proof of a source of this host: properties for the snapshots."""

    properties: dict[str, str]


@dataclass(frozen=True)
class FakeServer:
    """A server on filesystems that is always fit for a backup."""

    host: MakesSnapshots

    def recover(self) -> str | None:
        return None

    def observe(self) -> FakeObservation:
        return FakeObservation(VOLUMES)

    def hold(self, observed: FakeObservation, request: SnapshotRequest, events: Events) -> str:
        self.host.snapshot(request)
        return "at least 0-1-2"

    def prove(self, observed: FakeObservation, hold: str, made: SnapshotSet) -> FakeProof:
        assert {snapshot.dataset for snapshot in made.snapshots.values()} == set(observed.volumes.values())
        return FakeProof({"zsnapdb:position": "0-1-2"})

    def describe(self, observed: FakeObservation, proof: FakeProof) -> SourceDescription:
        kinds = {role: FilesystemType(mountpoint=f"/{role}", properties={}) for role in observed.volumes}
        return SourceDescription(manifest().source, kinds)


class FakeDisks(FakeServer):
    """A source without a server and without a position: disks on zvols."""

    def hold(self, observed: FakeObservation, request: SnapshotRequest, events: Events) -> str:
        self.host.snapshot(request)
        return "crash"

    def prove(self, observed: FakeObservation, hold: str, made: SnapshotSet) -> FakeProof:
        return FakeProof({"zsnapdb:grade": hold})

    def describe(self, observed: FakeObservation, proof: FakeProof) -> SourceDescription:
        kinds = {role: ZvolType(volsize=1 << 30, volblocksize=16384, properties={}) for role in observed.volumes}
        source = OtherSourcePart.model_validate({"kind": "disks", "grade": proof.properties["zsnapdb:grade"]})
        return SourceDescription(source, kinds)


MACHINE = """<domain type='kvm'>
  <name>web1</name><uuid>11111111-2222-4333-8444-555555555555</uuid><memory unit='KiB'>1024</memory>
  <os><type arch='x86_64'>hvm</type><kernel>/boot/vmlinuz</kernel></os>
  <devices>
    <disk type='block' device='disk'><source dev='/dev/zvol/tank/mysql/data'/><target dev='data'/></disk>
    <disk type='block' device='disk'><source dev='/dev/zvol/tank/mysql'/><target dev='parent'/></disk>
    <interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='production'/></interface>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
  </devices>
</domain>"""


class FakeMachine(FakeDisks):
    """A virtual machine whose disks are the volumes. The site has set a property on the data volume."""

    def describe(self, observed: FakeObservation, proof: FakeProof) -> SourceDescription:
        volumes = dict(super().describe(observed, proof).volumes)
        site = SitePart(properties={"com.sun:auto-snapshot": "true", "compression": "lz4"})
        volumes["data"] = volumes["data"].model_copy(update={"site": site})
        source = MachineSourcePart(
            domain="web1",
            uuid="11111111-2222-4333-8444-555555555555",
            grade=Grade(proof.properties["zsnapdb:grade"]),
            reason="nothing was held",
            xml=MACHINE,
        )
        return SourceDescription(source, volumes)
