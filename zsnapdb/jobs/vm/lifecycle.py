"""Jobs on an existing machine: start, stop, reset, extend the lease, protect and destroy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies, P, R, Verb
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.vm import catalogue, create, removal
from zsnapdb.jobs.vm.catalogue import Machine, SeenMachine, own_domain, ready_machine
from zsnapdb.jobs.vm.create import ReadyMarker
from zsnapdb.jobs.vm.removal import ForeignSnapshots
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected
from zsnapdb.zfs import datasets, destruction

_Opened = tuple[Hypervisor, SeenMachine]
MachineVerb = Verb[_Opened, P, R]
"""A command on a machine, with the types of its plan and result."""


@dataclass(frozen=True)
class MachineStep:
    """The plan or the result of a command: the machine before the command, and the steps as text."""

    seen: SeenMachine
    steps: tuple[str, ...]


def listing(settings: Settings) -> KnownCopies[SeenMachine]:
    """Return all machines with the states of their domains. If there are no machines, libvirt is not queried."""
    known = catalogue.known_machines(settings)
    if not known.copies:
        return KnownCopies(known.what, (), known.unreadable)
    with connected(settings.vms.uri) as hypervisor:
        seen = [catalogue.observe(hypervisor, machine) for machine in known.copies]
    return KnownCopies(known.what, seen, known.unreadable)


def _verb(settings: Settings, name: str, decide: Callable[[_Opened], tuple[P, Callable[[], R]]]) -> MachineVerb[P, R]:
    """Return a command that acts on a complete machine and its domain.

    Raises PreflightError if libvirt has no domain of the machine.
    """

    @contextlib.contextmanager
    def held() -> Iterator[_Opened]:
        with catalogue.on_machine(name), seen() as opened:
            yield opened

    @contextlib.contextmanager
    def seen() -> Iterator[_Opened]:
        with connected(settings.vms.uri) as hypervisor:
            machine = ready_machine(settings, name)
            if own_domain(hypervisor, machine) is None:
                raise PreflightError(
                    f"libvirt does not know the virtual machine {name}",
                    hint=f"its domain was removed; destroy it: `zsnapdb vm destroy {name}`",
                )
            yield hypervisor, catalogue.observe(hypervisor, machine)

    return Verb(seen, held, decide)


def start(settings: Settings, name: str, shows: ReadyMarker) -> MachineVerb[MachineStep, SeenMachine]:
    """Verify the devices of the machine, start it, and wait until it is ready."""

    def decide(opened: _Opened) -> tuple[MachineStep, Callable[[], SeenMachine]]:
        seen = opened[1]
        if seen.machine.phase is CopyPhase.CHANGING:
            raise PreflightError(
                f"a reset of the virtual machine {name} was interrupted", hint=f"finish it: `zsnapdb vm reset {name}`"
            )
        create.refuse_unreachable(shows, seen.machine.network)
        is_off = seen.state is not MachineState.RUNNING
        steps = (f"start the domain {name}",) if is_off else ()
        return MachineStep(seen, steps), lambda: _start(settings, opened[0], seen.machine, shows, is_off=is_off)

    return _verb(settings, name, decide)


def _start(
    settings: Settings, hypervisor: Hypervisor, machine: Machine, shows: ReadyMarker, *, is_off: bool = True
) -> SeenMachine:
    log = catalogue.machine_file(settings, machine.name, catalogue.SERIAL_LOG)
    if is_off:
        create.verify_devices(settings, list(machine.volumes.values()))
        create.prepare_log(settings, machine.name)
        hypervisor.start(machine.uuid)
    create.wait_until_ready(hypervisor, machine.name, machine.uuid, shows, log, settings.vms.start_timeout)
    return catalogue.observe(hypervisor, machine)


def stop(settings: Settings, name: str) -> MachineVerb[MachineStep, SeenMachine]:
    """Shut the guest down. If it is still running after `vms.stop_timeout`, power it off."""

    def decide(opened: _Opened) -> tuple[MachineStep, Callable[[], SeenMachine]]:
        hypervisor, seen = opened

        def shut_down() -> SeenMachine:
            if not hypervisor.shut_down(seen.machine.uuid, settings.vms.stop_timeout):
                hypervisor.power_off(seen.machine.uuid)
            return catalogue.observe(hypervisor, seen.machine)

        ask = f"ask the guest of {name} to shut down; after {settings.vms.stop_timeout:g} s take its power"
        return MachineStep(seen, (ask,) if seen.state is MachineState.RUNNING else ()), shut_down

    return _verb(settings, name, decide)


def reset(settings: Settings, name: str, shows: ReadyMarker) -> MachineVerb[MachineStep, SeenMachine]:
    """Return the disks of the machine to their state before its first start.

    The name, addresses and lease stay the same. If the machine was running, it is started again. If a reset is
    interrupted, the next reset completes it. Raises PreflightError if the machine's volumes have foreign snapshots, or
    if the marker `shows` cannot appear on this machine.
    """

    def decide(opened: _Opened) -> tuple[MachineStep, Callable[[], SeenMachine]]:
        seen = opened[1]
        foreign = removal.others(seen.machine.anchor, catalogue.machine_mark(name))
        removal.refuse_others(f"the virtual machine {name}", foreign, snapshots_may_go=False)
        removal.refuse_bookmarks(f"the virtual machine {name}", foreign)
        back = tuple(f"zfs rollback {dataset}@{catalogue.START_SNAPSHOT}" for dataset in seen.machine.volumes.values())
        if seen.state is MachineState.RUNNING:
            create.refuse_unreachable(shows, seen.machine.network)
            back = (f"take the power of {name}", *back, f"start the domain {name}")
        return MachineStep(seen, back), partial(_roll_back, settings, *opened, shows)

    return _verb(settings, name, decide)


def _roll_back(settings: Settings, hypervisor: Hypervisor, seen: SeenMachine, shows: ReadyMarker) -> SeenMachine:
    machine, mark = seen.machine, catalogue.machine_mark(seen.machine.name)
    datasets.set_properties(machine.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.CHANGING})
    hypervisor.power_off(machine.uuid)
    for dataset in machine.volumes.values():
        destruction.roll_back(dataset, catalogue.START_SNAPSHOT, "zsnapdb", mark)
    nvram = catalogue.machine_file(settings, machine.name, catalogue.NVRAM)
    if nvram.exists():
        create.copy_nvram(catalogue.machine_file(settings, machine.name, catalogue.FIRST_NVRAM), nvram)
    datasets.set_properties(machine.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
    machine = replace(machine, phase=CopyPhase.READY)
    if seen.state is MachineState.RUNNING:
        return _start(settings, hypervisor, machine, shows)
    return catalogue.observe(hypervisor, machine)


def extend(settings: Settings, host: Host, name: str, ttl: float | None) -> SeenMachine:
    """Extend the machine's lease. A lease that already ends later is not shortened."""
    return _lease(settings, host, name, copy_properties.extension(settings, ttl, host.latest()))


def protect(settings: Settings, host: Host, name: str, seconds: float) -> SeenMachine:
    """Protect the machine from the reaper for `seconds`. If `seconds` is 0, end the protection."""
    return _lease(settings, host, name, copy_properties.protection(settings, seconds, host.latest()))


def _lease(settings: Settings, host: Host, name: str, change: Callable[[CloneLease], CloneLease]) -> SeenMachine:
    with catalogue.on_machine(name), connected(settings.vms.uri) as hypervisor:
        machine, time = ready_machine(settings, name), removal_time(host)
        before = copy_properties.settle_lease(machine.anchor, machine.created, machine.lease, time)
        lease = leases.changed(before, change(before), time)
        datasets.set_properties(machine.anchor, copy_properties.lease_values(lease))
        return catalogue.observe(hypervisor, replace(machine, lease=lease))


@dataclass(frozen=True)
class MachineDestroyPlan:
    """The plan of `destroy`: the machine, and the snapshots of its volumes that other programs created."""

    seen: SeenMachine
    others: ForeignSnapshots


def destroy(
    settings: Settings, name: str, *, snapshots_may_go: bool
) -> Verb[Machine | None, MachineDestroyPlan | None, MachineDestroyPlan | None]:
    """Remove the machine, with its domain, files and datasets. Other datasets stay.

    If there is no such machine, the result is None, so that the command can be repeated. Raises PreflightError if
    foreign datasets depend on the machine.
    """

    @contextlib.contextmanager
    def seen() -> Iterator[Machine | None]:
        yield copies.find_or_none(catalogue.known_machines(settings), name)

    @contextlib.contextmanager
    def held() -> Iterator[Machine | None]:
        with catalogue.on_machine(name), seen() as machine:
            yield machine

    def decide(machine: Machine | None) -> tuple[MachineDestroyPlan | None, Callable[[], MachineDestroyPlan | None]]:
        if machine is None:
            return None, lambda: None
        foreign = removal.others(machine.anchor, catalogue.machine_mark(name))
        removal.refuse_others(f"the virtual machine {name}", foreign, snapshots_may_go=snapshots_may_go)
        with connected(settings.vms.uri) as hypervisor:
            own_domain(hypervisor, machine)
            planned = MachineDestroyPlan(catalogue.observe(hypervisor, machine), foreign)

        def remove() -> MachineDestroyPlan:
            with connected(settings.vms.uri) as opened:
                removal.remove_machine(settings, opened, machine)
            return planned

        return planned, remove

    return Verb(seen, held, decide)
