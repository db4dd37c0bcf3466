"""Jobs on an existing machine: start, stop, reset, its lease, and its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.copies import catalogue as copies
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.catalogue import KnownCopies
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.vm import catalogue, create, readiness, removal
from zsnapdb.jobs.vm.catalogue import Machine, SeenMachine, own_domain, ready_machine
from zsnapdb.jobs.vm.readiness import ReadyMarker
from zsnapdb.jobs.vm.removal import OthersSnapshots
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.vm.hypervisor import Hypervisor, MachineState, connected
from zsnapdb.zfs import datasets, owned


@dataclass(frozen=True)
class MachineStep:
    """What a command does, or would do, to a machine: the machine as seen before, and the steps in words."""

    seen: SeenMachine
    steps: tuple[str, ...]


def listing(settings: Settings) -> KnownCopies[SeenMachine]:
    """Return all machines with the state of their domains. libvirt is asked only if there are machines."""
    known = catalogue.known_machines(settings)
    if not known.copies:
        return KnownCopies(known.what, (), known.unreadable)
    with connected(settings.vms.uri) as hypervisor:
        seen = [catalogue.seen(hypervisor, machine) for machine in known.copies]
    return KnownCopies(known.what, seen, known.unreadable)


def _look(settings: Settings, name: str) -> SeenMachine:
    """Return one complete machine with the state of its domain. PreflightError if its own domain is not there."""
    with connected(settings.vms.uri) as hypervisor:
        machine = ready_machine(settings, name)
        _domain(hypervisor, machine)
        return catalogue.seen(hypervisor, machine)


def plan_start(settings: Settings, name: str, shows: ReadyMarker) -> MachineStep:
    """Return what `start` would do. PreflightError for what it would refuse."""
    seen = _look(settings, name)
    _refuse_start(seen.machine, shows)
    return MachineStep(seen, () if seen.state is MachineState.RUNNING else (f"start the domain {name}",))


def start(settings: Settings, name: str, shows: ReadyMarker) -> SeenMachine:
    """Start the machine, and wait until it is ready. Its devices are verified first."""
    with catalogue.on_machine(name), connected(settings.vms.uri) as hypervisor:
        machine = ready_machine(settings, name)
        _refuse_start(machine, shows)
        _start(settings, hypervisor, machine, shows)
        return catalogue.seen(hypervisor, machine)


def _start(settings: Settings, hypervisor: Hypervisor, machine: Machine, shows: ReadyMarker) -> None:
    known = _domain(hypervisor, machine)
    log = catalogue.serial_log(settings, machine.name)
    if known is not MachineState.RUNNING:
        create.verify_devices(settings, list(machine.volumes.values()))
        create.prepare_log(settings, machine.name)
        hypervisor.start(machine.uuid)
    readiness.wait(hypervisor, machine.name, machine.uuid, shows, log, settings.vms.start_timeout)


def _domain(hypervisor: Hypervisor, machine: Machine) -> MachineState:
    """Return the state of the machine's own domain. PreflightError if libvirt does not have it."""
    known = own_domain(hypervisor, machine)
    if known is None:
        raise PreflightError(
            f"libvirt does not know the virtual machine {machine.name}",
            hint=f"its domain was removed; destroy it: `zsnapdb vm destroy {machine.name}`",
        )
    return known.state


def _refuse_start(machine: Machine, shows: ReadyMarker) -> None:
    if machine.phase is CopyPhase.CHANGING:
        raise PreflightError(
            f"a reset of the virtual machine {machine.name} was interrupted",
            hint=f"finish it: `zsnapdb vm reset {machine.name}`",
        )
    readiness.refuse_unreachable(shows, machine.network)


def plan_stop(settings: Settings, name: str) -> MachineStep:
    """Return what `stop` would do."""
    seen = _look(settings, name)
    ask = f"ask the guest of {name} to shut down; after {settings.vms.stop_timeout:g} s take its power"
    return MachineStep(seen, (ask,) if seen.state is MachineState.RUNNING else ())


def stop(settings: Settings, name: str) -> SeenMachine:
    """Shut the guest down; take its power if it is not off within vms.stop_timeout."""
    with catalogue.on_machine(name), connected(settings.vms.uri) as hypervisor:
        machine = ready_machine(settings, name)
        _domain(hypervisor, machine)
        if not hypervisor.shut_down(machine.uuid, settings.vms.stop_timeout):
            hypervisor.power_off(machine.uuid)
        return catalogue.seen(hypervisor, machine)


def plan_reset(settings: Settings, name: str, shows: ReadyMarker) -> MachineStep:
    """Return what `reset` would do. PreflightError for what it would refuse."""
    seen = _look(settings, name)
    _refuse_reset(seen.machine, seen.state, shows)
    steps = [f"take the power of {name}"] if seen.state is MachineState.RUNNING else []
    steps += [f"zfs rollback {dataset}@{catalogue.START_SNAPSHOT}" for dataset in seen.machine.volumes.values()]
    steps += [f"start the domain {name}"] if seen.state is MachineState.RUNNING else []
    return MachineStep(seen, tuple(steps))


def _refuse_reset(machine: Machine, state: MachineState, shows: ReadyMarker) -> None:
    """Raise PreflightError if others made snapshots of the machine's volumes, or if `shows` could never be seen."""
    foreign = removal.others(machine.anchor, catalogue.machine_mark(machine.name))
    removal.refuse_others(f"the virtual machine {machine.name}", foreign, snapshots_may_go=False)
    removal.refuse_bookmarks(f"the virtual machine {machine.name}", foreign)
    if state is MachineState.RUNNING:
        readiness.refuse_unreachable(shows, machine.network)


def reset(settings: Settings, name: str, shows: ReadyMarker) -> SeenMachine:
    """Give the machine the disks again that it had before its first start. Name, addresses and lease stay.

    It runs afterwards if it ran before. It can be repeated: a reset that was interrupted is finished by the next.
    """
    with catalogue.on_machine(name), connected(settings.vms.uri) as hypervisor:
        machine = ready_machine(settings, name)
        state = _domain(hypervisor, machine)
        ran = state is MachineState.RUNNING
        _refuse_reset(machine, state, shows)
        mark = catalogue.machine_mark(name)
        datasets.set_properties(machine.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.CHANGING})
        hypervisor.power_off(machine.uuid)
        for dataset in machine.volumes.values():
            owned.roll_back(dataset, catalogue.START_SNAPSHOT, "zsnapdb", mark)
        nvram = catalogue.nvram_file(settings, "machines", name)
        if nvram.exists():
            create.copy_nvram(catalogue.first_nvram_file(settings, name), nvram)
        datasets.set_properties(machine.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
        if ran:
            _start(settings, hypervisor, machine, shows)
        return catalogue.seen(hypervisor, replace(machine, phase=CopyPhase.READY))


def extend(settings: Settings, host: Host, name: str, ttl: float | None) -> SeenMachine:
    """Extend the machine's lease; it is never shortened."""
    limits = catalogue.lease_policy(settings)
    return _lease(settings, host, name, lambda lease: leases.extended(lease, ttl, limits, host.latest()))


def protect(settings: Settings, host: Host, name: str, seconds: float) -> SeenMachine:
    """Protect the machine from the reaper for some time; 0 ends the protection."""
    limits = catalogue.lease_policy(settings)
    return _lease(settings, host, name, lambda lease: leases.protected(lease, seconds, limits, host.latest()))


def _lease(settings: Settings, host: Host, name: str, change: Callable[[CloneLease], CloneLease]) -> SeenMachine:
    with catalogue.on_machine(name), connected(settings.vms.uri) as hypervisor:
        machine = ready_machine(settings, name)
        created, time = machine.created, removal_time(host)
        before = copy_properties.settle_lease(machine.anchor, created, machine.lease, time)
        lease = leases.changed(before, change(before), time)
        datasets.set_properties(machine.anchor, copy_properties.lease_values(lease))
        return catalogue.seen(hypervisor, replace(machine, lease=lease))


@dataclass(frozen=True)
class MachineDestroyPlan:
    """What `destroy` removes: the machine, and the snapshots that others made of its volumes."""

    seen: SeenMachine
    others: OthersSnapshots


def plan_destroy(settings: Settings, name: str, *, snapshots_may_go: bool) -> MachineDestroyPlan | None:
    """Return what `destroy` would do; None if there is no such machine. PreflightError if others depend on it."""
    machine = copies.find_or_none(catalogue.known_machines(settings), name)
    if machine is None:
        return None
    with connected(settings.vms.uri) as hypervisor:
        own_domain(hypervisor, machine)
        return _destroy_plan(hypervisor, machine, snapshots_may_go=snapshots_may_go)


def _destroy_plan(hypervisor: Hypervisor, machine: Machine, *, snapshots_may_go: bool) -> MachineDestroyPlan:
    foreign = removal.others(machine.anchor, catalogue.machine_mark(machine.name))
    removal.refuse_others(f"the virtual machine {machine.name}", foreign, snapshots_may_go=snapshots_may_go)
    return MachineDestroyPlan(catalogue.seen(hypervisor, machine), foreign)


def destroy(settings: Settings, name: str, *, snapshots_may_go: bool) -> MachineDestroyPlan | None:
    """Remove the machine, its domain and exactly its datasets. None if there is none, so it can be repeated."""
    with catalogue.on_machine(name):
        machine = copies.find_or_none(catalogue.known_machines(settings), name)
        if machine is None:
            return None
        with connected(settings.vms.uri) as hypervisor:
            planned = _destroy_plan(hypervisor, machine, snapshots_may_go=snapshots_may_go)
            removal.remove_machine(settings, hypervisor, machine)
            return planned
