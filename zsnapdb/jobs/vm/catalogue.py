"""The catalogue of bases and machines on this host, from dataset properties and libvirt's domain states."""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from zsnapdb.base.domain_types import PROPERTY
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets, KnownCopies
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.dataset_copies.property_fields import CREATED, LEASE, OWNER, PHASE, choice_or, stored_field, text
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.planning.vm.cloud_init import GuestIdentity
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.planning.vm.request import NAME, ZvolSpace
from zsnapdb.vm.hypervisor import Hypervisor, KnownDomain, MachineState
from zsnapdb.zfs import datasets, zvols
from zsnapdb.zfs.destruction import Mark

BASE_PROPERTY = f"{PROPERTY}:vm-base"
"""On the anchor and on every volume of a base, as a local property: the name of the base.

On the anchor of a machine: the base of the machine, or INSTANCE@BACKUP.
"""
MACHINE_PROPERTY = f"{PROPERTY}:vm"
"""On the anchor and on every volume of a machine, as a local property: the name of the machine."""
DOMAIN_PROPERTY = f"{PROPERTY}:vm-domain"
"""The compressed XML of the base's domain."""
MADE_OF_PROPERTY = f"{PROPERTY}:vm-made-of"
"""On the anchor of a base: the image or domain from which the base was created."""
BASE_SNAPSHOT = "zsnapdb-base"
"""The short name of the snapshots of a base's volumes from which machines are cloned."""
START_SNAPSHOT = "zsnapdb-start"
"""The short name of the snapshots of a machine's volumes before its first start.

`reset` rolls the volumes back to these snapshots.
"""
_PROPERTY_BYTES = 8000
"""The maximum number of bytes in a user property (zfsprops(7))."""


def base_mark(name: str) -> Mark:
    """Return the mark that every dataset of the base has."""
    return Mark(BASE_PROPERTY, name)


def machine_mark(name: str) -> Mark:
    """Return the mark that every dataset of the machine has."""
    return Mark(MACHINE_PROPERTY, name)


def encode_domain(xml: str) -> str:
    """Return the XML in the encoded form for a property. Raises PreflightError if the encoded text is too long."""
    text = base64.b64encode(zlib.compress(xml.encode(), 9)).decode()
    if len(text) > _PROPERTY_BYTES:
        raise PreflightError(
            f"the XML of the domain is too long: {len(text)} bytes when compressed, at most {_PROPERTY_BYTES}",
            hint="remove unneeded elements, such as descriptions, from the domain (`virsh edit`)",
        )
    return text


def decode_domain(text: str, where: str) -> str:
    """Return the XML that is encoded in the text of a property.

    If the text cannot be decoded, raise DamagedError, whose message contains `where`.
    """
    try:
        unpacked = zlib.decompressobj()
        return unpacked.decompress(base64.b64decode(text, validate=True), 1 << 20).decode()
    except (ValueError, zlib.error) as error:
        raise DamagedError(f"{DOMAIN_PROPERTY} of {where} cannot be read", hint="make the base again") from error


_HOME = "zsnapdb/vms"


@dataclass(frozen=True, kw_only=True)
class BaseRecord:
    """The record in the properties of a base's anchor dataset.

    The base was created from the image or domain `made_of`. `encoded` is the compressed XML of the base's domain.
    """

    name: str
    anchor: str
    phase: CopyPhase = field(metadata=stored_field(PHASE))
    created: str = field(metadata=stored_field(CREATED))
    made_of: str = field(metadata=stored_field(text(MADE_OF_PROPERTY)))
    encoded: str = field(metadata=stored_field(text(DOMAIN_PROPERTY)))

    @property
    def domain_xml(self) -> str:
        """The XML of the base's domain. Raises DamagedError if the property cannot be decoded."""
        return decode_domain(self.encoded, self.anchor)


@dataclass(frozen=True, kw_only=True)
class MachineBase(BaseRecord):
    """A base and its volumes. `volumes` contains the zvol of each disk, keyed by the target name of the disk."""

    volumes: Mapping[str, str]
    own_bytes: int


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """The record in the properties of a cloned machine's anchor dataset.

    `base` is the name of the base, or INSTANCE@BACKUP. `grade` is the consistency level of the backup; it is None if
    the machine was cloned from a base. `uuid` is the UUID of the machine's domain. `identity` says how the guest gets a
    new identity.
    """

    name: str
    anchor: str
    base: str = field(metadata=stored_field(text(BASE_PROPERTY)))
    uuid: str = field(metadata=stored_field(text(f"{PROPERTY}:vm-uuid")))
    phase: CopyPhase = field(metadata=stored_field(PHASE))
    created: str = field(metadata=stored_field(CREATED))
    owner: str = field(metadata=stored_field(OWNER))
    lease: CloneLease = field(metadata=stored_field(LEASE))
    network: str = field(metadata=stored_field(text(f"{PROPERTY}:vm-network")))
    grade: Grade | None = field(metadata=stored_field(choice_or(f"{PROPERTY}:vm-grade", Grade, None)))
    identity: GuestIdentity = field(
        metadata=stored_field(choice_or(f"{PROPERTY}:vm-identity", GuestIdentity, GuestIdentity.NONE))
    )


@dataclass(frozen=True, kw_only=True)
class Machine(MachineRecord):
    """A cloned machine and its volumes.

    `own_bytes` is the space in bytes that the machine does not share with its origin.
    """

    volumes: Mapping[str, str]
    own_bytes: int


M = TypeVar("M", MachineBase, Machine)


@dataclass(frozen=True)
class SeenMachine:
    """A machine, the state of its domain, and the known addresses of its guest."""

    machine: Machine
    state: MachineState
    addresses: tuple[str, ...] = ()


def homes(settings: Settings) -> list[str]:
    """Return the existing datasets on this host that may contain bases and machines."""
    return copies.homes(settings.vms.dataset, _HOME)


def home(settings: Settings, pool: str | None) -> str:
    """Return the parent dataset for new bases in the pool. If `pool` is None, use the only pool of this host.

    Raises PreflightError if `pool` is None and there are several pools.
    """
    if pool is None and settings.vms.dataset:
        return settings.vms.dataset
    if pool is None:
        pools = datasets.pools()
        if len(pools) != 1:
            raise PreflightError(f"the host has {len(pools)} pools", hint="set vms.dataset to a dataset of one of them")
        (pool,) = pools
    return copies.home(settings.vms.dataset, pool, _HOME, "vms.dataset")


MACHINE_FILES = NVRAM, FIRST_NVRAM, SEED, SERIAL_LOG = "nvram", "first.nvram", "seed.iso", "serial.log"
"""The files of a machine.

They are the NVRAM, a copy of the first NVRAM for a reset, the cloud-init image with the guest's identity, and the
output of the first serial line.
"""


def machine_file(settings: Settings, name: str, what: str) -> Path:
    """Return the path of the machine's file `what`, which is a name from `MACHINE_FILES`."""
    return settings.vms.folder / "machines" / f"{name}.{what}"


def base_nvram(settings: Settings, name: str) -> Path:
    """Return the path of the base's NVRAM file."""
    return settings.vms.folder / "bases" / f"{name}.nvram"


def known_bases(settings: Settings) -> KnownCopies[MachineBase]:
    """Return the bases on this host, sorted by name."""
    return _read_copies(settings, "base", "bases", MachineBase, BASE_PROPERTY)


def bases(settings: Settings) -> list[MachineBase]:
    """Return the bases on this host whose properties can be read, sorted by name."""
    return list(known_bases(settings).copies)


def known_machines(settings: Settings) -> KnownCopies[Machine]:
    """Return the machines on this host, sorted by name."""
    return _read_copies(settings, "virtual machine", "machines", Machine, MACHINE_PROPERTY)


def _read_copies(settings: Settings, what: str, folder: str, kind: type[M], mark: str) -> KnownCopies[M]:
    above = [f"{top}/{folder}" for top in homes(settings)]
    seen = copies.known_copies(
        what, above, (*property_fields.columns(kind), "type", "used"), mark, partial(_read, kind)
    )
    return KnownCopies(seen.what, sorted(seen.copies, key=lambda copy: copy.name), seen.unreadable)


def machines(settings: Settings) -> list[Machine]:
    """Return the machines on this host whose properties can be read, sorted by name."""
    return list(known_machines(settings).copies)


def _read(kind: type[M], found: CopyDatasets) -> M:
    if not NAME.fullmatch(found.name):
        raise ValueError(f"{found.name!r} is not the name of a machine")
    types = {dataset: values["type"].value for dataset, values in found.members.items()}
    volumes = {name[len(found.anchor) + 1 :]: name for name, type_ in types.items() if type_ == "volume"}
    known = property_fields.read(kind, found)
    return kind(name=found.name, anchor=found.anchor, volumes=volumes, own_bytes=found.number("used"), **known)


def ready_machine(settings: Settings, name: str) -> Machine:
    """Return the machine with that name. Raises PreflightError while the machine is being created or destroyed.

    Raises UnknownNameError, which lists the existing machines, if no machine has that name. Raises DamagedError if the
    properties of the machine cannot be read.
    """
    known = known_machines(settings)
    return copies.complete(known.what, copies.find(known, name))


def own_domain(hypervisor: Hypervisor, machine: Machine) -> KnownDomain | None:
    """Return the machine's domain; None if libvirt has no domain with its UUID.

    Raises PreflightError if the domain with this UUID lacks the machine's mark, so zsnapdb did not define it.
    """
    known = hypervisor.find(machine.uuid) if machine.uuid != datasets.UNSET else None
    if known is not None and not known.domain.is_marked(machine.name, machine.uuid, machine.anchor):
        raise PreflightError(
            f"the domain {known.domain.name} has the UUID of the virtual machine {machine.name}, but not its mark",
            hint="somebody changed the metadata of the domain; zsnapdb does not touch it. See `virsh dumpxml`",
        )
    return known


def observe(hypervisor: Hypervisor, machine: Machine) -> SeenMachine:
    """Return the machine with the state of its domain and, if it is running, the addresses of its guest."""
    try:
        known = own_domain(hypervisor, machine)
    except (PreflightError, DamagedError):
        return SeenMachine(machine, MachineState.MISSING)
    if known is None:
        return SeenMachine(machine, MachineState.MISSING)
    addresses = hypervisor.addresses(machine.uuid) if known.state is MachineState.RUNNING else ()
    return SeenMachine(machine, known.state, addresses)


def spaces(volumes: Mapping[str, str]) -> tuple[ZvolSpace, ...]:
    """Return the space that each volume of a base uses."""
    facts = zvols.describe(list(volumes.values()))
    return tuple(
        ZvolSpace(target, facts[name].size, facts[name].block_size, facts[name].reserved)
        for target, name in sorted(volumes.items())
    )


PATIENCE = 60.0


def names() -> contextlib.AbstractContextManager[None]:
    """Take the lock for reserving names of bases and machines. Callers must hold this lock only for a short time."""
    return exclusive("vm-names", doing="naming virtual machines", patience=PATIENCE)


def name_of_machine(name: str) -> str:
    """Return the name of the machine's lock."""
    return f"vm-machine-{name}"


def name_of_base(name: str) -> str:
    """Return the name of the base's lock."""
    return f"vm-base-{name}"


def on_machine(name: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for changes of the machine."""
    return exclusive(name_of_machine(name), doing=f"working on the virtual machine {name}", patience=PATIENCE)


def on_base(name: str) -> contextlib.AbstractContextManager[None]:
    """Take the lock for creating, cloning or removing the base."""
    return exclusive(name_of_base(name), doing=f"working on the base {name}", patience=PATIENCE)
