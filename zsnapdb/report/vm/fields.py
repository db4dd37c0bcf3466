"""Fields and words of bases and machines that several views share."""

from __future__ import annotations

from typing_extensions import TypedDict

from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.vm.catalogue import MachineBase, SeenMachine
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.vm.request import ZvolSpace
from zsnapdb.planning.vm.seed import GuestIdentity


class MachineFields(TypedDict):
    """A virtual machine that was cloned."""

    name: str
    base: str
    grade: str | None
    uuid: str
    phase: str
    state: str
    addresses: list[str]
    network: str
    created: str
    owner: str
    expires: str
    protected_until: str | None
    dataset: str
    volumes: dict[str, str]
    own_bytes: int
    identity_inside: str


class BaseFields(TypedDict):
    """A base of virtual machines."""

    name: str
    made_of: str
    phase: str
    created: str
    dataset: str
    volumes: dict[str, str]
    own_bytes: int


class SpaceFields(TypedDict):
    """The space of a clone's volume, in bytes."""

    target: str
    size: int
    volblocksize: int
    base_refreservation: int
    refreservation: int


_INSIDE = {
    GuestIdentity.NONE: (
        "zsnapdb changed nothing inside the guest: its machine-id, host keys, host name and the identity of its servers"
        " are those of the machine that was cloned"
    ),
    GuestIdentity.CLOUD_INIT: (
        "cloud-init in the guest is given a host name, and makes a new machine-id and new ssh host keys (NoCloud, from"
        " a CD); in a guest without cloud-init nothing changes. The identity of its servers (server_uuid, server_id) is"
        " that of the machine that was cloned"
    ),
}


def inside(identity: GuestIdentity) -> str:
    """Return what is said of every clone about the identity of its guest."""
    return _INSIDE[identity]


def state(seen: SeenMachine) -> str:
    """Return what the machine does now, or the phase of a machine that is not complete."""
    if seen.machine.phase is not CopyPhase.READY:
        return seen.machine.phase
    return seen.state


def machine_fields(seen: SeenMachine) -> MachineFields:
    """Return the JSON fields of a machine."""
    machine = seen.machine
    return {
        "name": machine.name,
        "base": machine.base,
        "grade": machine.grade or None,
        "uuid": machine.uuid,
        "phase": machine.phase.value,
        "state": seen.state.value,
        "addresses": list(seen.addresses),
        "network": machine.network,
        "created": machine.created,
        "owner": machine.owner,
        "expires": stamp(machine.lease.expires),
        "protected_until": stamp(machine.lease.protected_until) if machine.lease.protected_until else None,
        "dataset": machine.anchor,
        "volumes": dict(machine.volumes),
        "own_bytes": machine.own_bytes,
        "identity_inside": machine.identity,
    }


def base_fields(base: MachineBase) -> BaseFields:
    """Return the JSON fields of a base."""
    return {
        "name": base.name,
        "made_of": base.made_of,
        "phase": base.phase.value,
        "created": base.created,
        "dataset": base.anchor,
        "volumes": dict(base.volumes),
        "own_bytes": base.own_bytes,
    }


def space_fields(space: ZvolSpace) -> SpaceFields:
    """Return the JSON fields of the space of a clone's volume."""
    return {
        "target": space.target,
        "size": space.size,
        "volblocksize": space.block_size,
        "base_refreservation": space.reserved,
        "refreservation": 0,
    }
