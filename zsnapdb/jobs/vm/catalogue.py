"""Lists bases and machines on this host. The properties of their datasets say what there is, libvirt what runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import DamagedError, NotThere, PreflightError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.vm import properties
from zsnapdb.jobs.vm.properties import MachinePhase
from zsnapdb.planning.clone.lease import CloneLease, Policy, policy, read_stamp
from zsnapdb.planning.vm.grade import Grade
from zsnapdb.planning.vm.request import NAME, ZvolSpace
from zsnapdb.planning.vm.seed import GuestIdentity
from zsnapdb.vm.hypervisor import Hypervisor, KnownDomain, MachineState
from zsnapdb.zfs import datasets, zvols

_BASE_COLUMNS = (
    properties.BASE_PROPERTY,
    properties.PHASE_PROPERTY,
    properties.CREATED_PROPERTY,
    properties.DOMAIN_PROPERTY,
    properties.MADE_OF_PROPERTY,
    "type",
    "used",
)
_MACHINE_COLUMNS = (
    properties.MACHINE_PROPERTY,
    properties.BASE_PROPERTY,
    properties.PHASE_PROPERTY,
    properties.CREATED_PROPERTY,
    properties.OWNER_PROPERTY,
    properties.EXPIRES_PROPERTY,
    properties.PROTECTED_PROPERTY,
    properties.UUID_PROPERTY,
    properties.NETWORK_PROPERTY,
    properties.GRADE_PROPERTY,
    properties.IDENTITY_PROPERTY,
    "type",
    "used",
    "origin",
)
_Properties = Mapping[str, datasets.Property]


@dataclass(frozen=True)
class MachineBase:
    """A base: its anchor, its volumes by the target of their disk, and what it was made of. `encoded`: its domain."""

    name: str
    anchor: str
    phase: MachinePhase
    created: str
    made_of: str
    volumes: Mapping[str, str]
    encoded: str
    own_bytes: int

    @property
    def domain_xml(self) -> str:
        """The XML of its domain. DamagedError if the property was altered."""
        return properties.decode_domain(self.encoded, self.anchor)


@dataclass(frozen=True)
class Machine:
    """A machine that was cloned, as the properties of its datasets describe it.

    `base` is the base, or INSTANCE@BACKUP; `grade` the grade of that backup, "" if it was a base. `own_bytes` is the
    space that only the machine occupies.
    """

    name: str
    base: str
    anchor: str
    uuid: str
    phase: MachinePhase
    created: str
    owner: str
    lease: CloneLease
    network: str
    volumes: Mapping[str, str]
    own_bytes: int
    grade: str = ""
    identity: GuestIdentity = GuestIdentity.NONE


@dataclass(frozen=True)
class SeenMachine:
    """A machine, what its domain does now, and the addresses of its guest that are known."""

    machine: Machine
    state: MachineState
    addresses: tuple[str, ...] = ()


def lease_policy(settings: Settings) -> Policy:
    """Return the limits of leases: those of clones of servers."""
    return policy(settings.clones)


def homes(settings: Settings) -> list[str]:
    """Return the existing datasets on this host under which bases and machines may live."""
    possible = [settings.vms.dataset] if settings.vms.dataset else [f"{p}/zsnapdb/vms" for p in datasets.pools()]
    return [dataset for dataset in possible if datasets.exists(dataset)]


def home(settings: Settings, pool: str | None) -> str:
    """Return the dataset for new bases in the pool (None: the only pool). PreflightError if it is not clear."""
    if settings.vms.dataset:
        if pool is not None and settings.vms.dataset.partition("/")[0] != pool:
            raise PreflightError(
                f"vms.dataset {settings.vms.dataset} is not in the pool {pool} of the disks",
                hint="set vms.dataset to a dataset in that pool: a ZFS clone lives in the pool of its snapshot",
            )
        return settings.vms.dataset
    if pool is None:
        pools = datasets.pools()
        if len(pools) != 1:
            raise PreflightError(f"the host has {len(pools)} pools", hint="set vms.dataset to a dataset of one of them")
        (pool,) = pools
    return f"{pool}/zsnapdb/vms"


def nvram_file(settings: Settings, kind: str, name: str) -> Path:
    """Return where the NVRAM file of a base or machine lies."""
    return settings.vms.folder / kind / f"{name}.nvram"


def first_nvram_file(settings: Settings, name: str) -> Path:
    """Return where the NVRAM file lies that the machine had at first; a reset goes back to it."""
    return settings.vms.folder / "machines" / f"{name}.first.nvram"


def seed_file(settings: Settings, name: str) -> Path:
    """Return where the image lies from which cloud-init takes the identity of the machine's guest."""
    return settings.vms.folder / "machines" / f"{name}.seed.iso"


def serial_log(settings: Settings, name: str) -> Path:
    """Return where the output of a machine's first serial line lies."""
    return settings.vms.folder / "machines" / f"{name}.serial.log"


def bases(settings: Settings) -> list[MachineBase]:
    """Return the bases on this host, by name. Only datasets that zsnapdb marked, locally, count."""
    known = [
        _base(name, anchor, facts, volumes)
        for top in homes(settings)
        for name, anchor, facts, volumes in _groups(f"{top}/bases", _BASE_COLUMNS, properties.BASE_PROPERTY)
    ]
    return sorted(known, key=lambda base: base.name)


def machines(settings: Settings) -> list[Machine]:
    """Return the machines on this host, by name. Only datasets that zsnapdb marked, locally, count."""
    known = [
        _machine(name, anchor, facts, volumes)
        for top in homes(settings)
        for name, anchor, facts, volumes in _groups(f"{top}/machines", _MACHINE_COLUMNS, properties.MACHINE_PROPERTY)
    ]
    return sorted(known, key=lambda machine: machine.name)


def _groups(top: str, columns: tuple[str, ...], mark: str) -> Iterator[tuple[str, str, _Properties, dict[str, str]]]:
    """Yield name, anchor, the anchor's properties and the volumes of each anchor below `top`."""
    try:
        below = datasets.children(top, columns)
    except NotThere:
        return
    for anchor, facts in below.items():
        name = anchor[len(top) + 1 :]
        if "/" in name or not NAME.fullmatch(name) or facts[mark] != datasets.Property(name, "local"):
            continue
        volumes = {
            dataset[len(anchor) + 1 :]: dataset
            for dataset, values in below.items()
            if dataset.startswith(f"{anchor}/")
            and values["type"].value == "volume"
            and values[mark] == datasets.Property(name, "local")
        }
        yield name, anchor, facts, volumes


def _phase(facts: _Properties) -> MachinePhase:
    phase = facts[properties.PHASE_PROPERTY]
    return properties.phase_of(phase.value, is_local=phase.is_local)


def _base(name: str, anchor: str, facts: _Properties, volumes: Mapping[str, str]) -> MachineBase:
    return MachineBase(
        name=name,
        anchor=anchor,
        phase=_phase(facts),
        created=facts[properties.CREATED_PROPERTY].value,
        made_of=facts[properties.MADE_OF_PROPERTY].value,
        volumes=volumes,
        encoded=facts[properties.DOMAIN_PROPERTY].value,
        own_bytes=int(facts["used"].value),
    )


def _machine(name: str, anchor: str, facts: _Properties, volumes: Mapping[str, str]) -> Machine:
    protected = facts[properties.PROTECTED_PROPERTY].value
    identity = facts[properties.IDENTITY_PROPERTY].value
    return Machine(
        name=name,
        base=facts[properties.BASE_PROPERTY].value,
        anchor=anchor,
        uuid=facts[properties.UUID_PROPERTY].value,
        phase=_phase(facts),
        created=facts[properties.CREATED_PROPERTY].value,
        owner=facts[properties.OWNER_PROPERTY].value,
        lease=CloneLease(
            read_stamp(facts[properties.EXPIRES_PROPERTY].value),
            None if protected in (datasets.UNSET, "no") else read_stamp(protected),
        ),
        network=facts[properties.NETWORK_PROPERTY].value,
        volumes=volumes,
        own_bytes=int(facts["used"].value),
        grade=grade if (grade := facts[properties.GRADE_PROPERTY].value) in set(Grade) else "",
        identity=GuestIdentity(identity) if identity in set(GuestIdentity) else GuestIdentity.NONE,
    )


def find_machine(settings: Settings, name: str) -> Machine:
    """Return the machine of that name. NotThere names the machines that exist."""
    known = machines(settings)
    for machine in known:
        if machine.name == name:
            return machine
    names = ", ".join(machine.name for machine in known) or "none"
    raise UnknownNameError(f"there is no virtual machine {name!r}", hint=f"existing machines: {names}")


def ready_machine(settings: Settings, name: str) -> Machine:
    """Return the machine of that name. PreflightError if it is still being made, or is being destroyed."""
    machine = find_machine(settings, name)
    if machine.phase in properties.HALF_MADE:
        raise PreflightError(
            f"the virtual machine {name} is not complete (phase {machine.phase})",
            hint="wait until the other zsnapdb process ends; if no process works on it, run `zsnapdb reap`",
        )
    if machine.phase is MachinePhase.UNKNOWN:
        raise PreflightError(
            f"{properties.PHASE_PROPERTY} of the virtual machine {name} was altered", hint=altered_hint(machine)
        )
    return machine


def altered_hint(machine: Machine) -> str:
    """Return what a person does with a machine whose phase was altered."""
    whole = f"if it is complete, `zfs set {properties.PHASE_PROPERTY}={MachinePhase.READY} {machine.anchor}`"
    return f"{whole}; else `zsnapdb vm destroy {machine.name}`"


def own_domain(hypervisor: Hypervisor, machine: Machine) -> KnownDomain | None:
    """Return the machine's domain; None if libvirt has none with its UUID.

    PreflightError if the domain with this UUID does not carry the machine's mark: then it is somebody else's.
    """
    known = hypervisor.find(machine.uuid) if machine.uuid != datasets.UNSET else None
    if known is not None and not known.domain.is_marked(machine.name, machine.uuid, machine.anchor):
        raise PreflightError(
            f"the domain {known.domain.name} has the UUID of the virtual machine {machine.name}, but not its mark",
            hint="somebody changed the metadata of the domain; zsnapdb does not touch it. See `virsh dumpxml`",
        )
    return known


def seen(hypervisor: Hypervisor, machine: Machine) -> SeenMachine:
    """Return the machine with the state of its domain, and its addresses while it runs."""
    try:
        known = own_domain(hypervisor, machine)
    except (PreflightError, DamagedError):
        return SeenMachine(machine, MachineState.MISSING)
    if known is None:
        return SeenMachine(machine, MachineState.MISSING)
    addresses = hypervisor.addresses(machine.uuid) if known.state is MachineState.RUNNING else ()
    return SeenMachine(machine, known.state, addresses)


def spaces(volumes: Mapping[str, str]) -> tuple[ZvolSpace, ...]:
    """Return the space of each volume of a base."""
    facts = zvols.describe(list(volumes.values()))
    return tuple(
        ZvolSpace(target, facts[name].size, facts[name].block_size, facts[name].reserved)
        for target, name in sorted(volumes.items())
    )
