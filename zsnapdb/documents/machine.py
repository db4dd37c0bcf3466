"""The documents of bases and of cloned virtual machines."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, or_null, stamp
from zsnapdb.documents.clone import UnreadableFields


class MachineFields(Document):
    """A cloned virtual machine."""

    name: Annotated[str, At("machine.name")]
    base: Annotated[str, At("machine.base")]
    grade: Annotated[str | None, At("machine.grade", or_null)]
    uuid: Annotated[str, At("machine.uuid")]
    phase: Annotated[str, At("machine.phase")]
    state: str
    addresses: tuple[str, ...]
    network: Annotated[str, At("machine.network")]
    created: Annotated[str, At("machine.created")]
    owner: Annotated[str, At("machine.owner")]
    expires: Annotated[str, At("machine.lease.expires", stamp)]
    protected_until: Annotated[str | None, At("machine.lease.protected_until", stamp)]
    dataset: Annotated[str, At("machine.anchor")]
    volumes: Annotated[dict[str, str], At("machine.volumes")]
    own_bytes: Annotated[int, At("machine.own_bytes")]
    identity_inside: Annotated[str, At("machine.identity")]


class BaseFields(Document):
    """A base of virtual machines."""

    name: str
    made_of: str
    phase: str
    created: str
    dataset: Annotated[str, At("anchor")]
    volumes: dict[str, str]
    own_bytes: int


class SpaceFields(Document):
    """The space of a clone's volume, in bytes."""

    target: str
    size: int
    volblocksize: Annotated[int, At("block_size")]
    base_refreservation: Annotated[int, At("reserved")]
    refreservation: Annotated[int, At("target", lambda _: 0)]


class PlannedMachineFields(Document):
    """A machine to be cloned; `domain` is its XML."""

    name: str
    uuid: str
    dataset: Annotated[str, At("anchor")]
    volumes: dict[str, str]
    domain: Annotated[str, At("xml")]


class MachinesPlanDocument(Document):
    """The plan of cloned machines."""

    base: Annotated[str, At("origin.name")]
    grade: Annotated[str | None, At("origin.grade")]
    machines: tuple[PlannedMachineFields, ...]
    spaces: Annotated[tuple[SpaceFields, ...], At("origin.spaces")]
    network: Annotated[str, At("network.words")]
    expires: Annotated[str, At("lease.expires", stamp)]
    owner: str
    starts: bool
    waits_for: Annotated[str, At("marker.words")]
    identity_inside: Annotated[str, At("identity")]


class MachinesMadeDocument(Document):
    """Cloned machines."""

    base: Annotated[str, At("plan.origin.name")]
    grade: Annotated[str | None, At("plan.origin.grade")]
    machines: tuple[MachineFields, ...]
    seconds: dict[str, float]
    identity_inside: Annotated[str, At("plan.identity")]


class MachinesDocument(Document):
    """All machines, and those with unreadable properties."""

    machines: tuple[MachineFields, ...]
    unreadable: tuple[UnreadableFields, ...]


class MachineStepDocument(Document):
    """The plan of a command on a machine."""

    verb: str
    machine: Annotated[MachineFields, At("step.seen")]
    steps: Annotated[tuple[str, ...], At("step.steps")]


class MachineChangedDocument(Document):
    """A machine after a command."""

    verb: str
    machine: Annotated[MachineFields, At("seen")]


class MachineDestroyDocument(Document):
    """The machine that is destroyed, or would be destroyed; null if it does not exist."""

    name: str
    machine: Annotated[MachineFields | None, At("plan.seen")]
    foreign_snapshots: Annotated[tuple[str, ...], At("plan.others.snapshots", default=())]


class BasePlanDocument(Document):
    """The plan or result of the creation of a base."""

    name: str
    dataset: Annotated[str, At("anchor")]
    made_of: str
    volumes: dict[str, str]
    sizes: dict[str, int]
    source_snapshots: dict[str, str]


class BasesDocument(Document):
    """All bases."""

    bases: tuple[BaseFields, ...]


class BaseDestroyDocument(Document):
    """The base that is removed, or would be removed; null if it does not exist."""

    name: str
    base: BaseFields | None
