"""The reaper of machines: removes expired machines, and what runs that died left behind. It has its part of `reap`."""

from __future__ import annotations

from collections.abc import Collection

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock import now
from zsnapdb.jobs.clone import sweeping
from zsnapdb.jobs.clone.destroy import GoesToo
from zsnapdb.jobs.clone.locks import if_free
from zsnapdb.jobs.clone.reaper import Leak
from zsnapdb.jobs.clone.sweeping import CopyKind, ReapOutcome, SweepVerdict
from zsnapdb.jobs.vm import catalogue, locks, properties, removal
from zsnapdb.jobs.vm.catalogue import Machine, MachineBase
from zsnapdb.jobs.vm.properties import MachinePhase
from zsnapdb.planning.clone.lease import CloneUse, LeaseVerdict, judge
from zsnapdb.vm.hypervisor import connected
from zsnapdb.zfs import datasets

_UNUSED = CloneUse(0, None)
"""Who uses a machine is not asked: its lease alone says how long it stays."""


def leaks(settings: Settings) -> list[Leak]:
    """Return what runs that died left behind. What another process works on now is not a leak."""
    leaks = []
    for machine in catalogue.machines(settings):
        if machine.phase is not MachinePhase.READY:
            with if_free(locks.name_of_machine(machine.name)) as free:
                leaks += [_leak(machine)] if free else []
    for base in catalogue.bases(settings):
        if base.phase in properties.HALF_MADE:
            with if_free(locks.name_of_base(base.name)) as free:
                leaks += [Leak(f"half-made base (phase {base.phase})", base.anchor, "")] if free else []
    return [*leaks, *_orphaned_domains(settings)]


def _leak(machine: Machine) -> Leak:
    if machine.phase is MachinePhase.UNKNOWN:
        hint = catalogue.altered_hint(machine)
        return Leak(f"virtual machine whose {properties.PHASE_PROPERTY} was altered", machine.anchor, "", hint)
    if machine.phase is MachinePhase.CHANGING:
        hint = f"run `zsnapdb vm reset {machine.name}` again"
        return Leak("virtual machine whose reset was interrupted", machine.anchor, "", hint)
    return Leak(f"half-made virtual machine (phase {machine.phase})", machine.anchor, "")


def _orphaned_domains(settings: Settings) -> list[Leak]:
    """Return the domains that zsnapdb defined and whose datasets are gone. libvirt is asked only if it can be used."""
    if not catalogue.homes(settings):
        return []
    try:
        with connected(settings.vms.uri) as hypervisor:
            known = [item.domain for item in hypervisor.domains()]
    except ZsnapdbError:
        return []
    hint = "remove it with `virsh undefine --nvram`; its disks do not exist"
    return [
        Leak("domain of a virtual machine whose datasets are gone", domain.name, "", hint)
        for domain in known
        if domain.mark is not None and domain.mark.uuid == domain.uuid and not datasets.exists(domain.mark.dataset)
    ]


def sweep(settings: Settings, *, act: bool, also: Collection[GoesToo] = ()) -> list[ReapOutcome]:
    """Remove half-made and expired machines and half-made bases, or say what would be removed (`act` false).

    One with snapshots that others made stays, unless `also` lets them go.
    """
    may_go = GoesToo.FOREIGN_SNAPSHOTS in also
    machines = CopyKind[Machine](
        what=lambda _: "vm",
        name=lambda machine: machine.name,
        listing=lambda: catalogue.machines(settings),
        lock=lambda machine: locks.name_of_machine(machine.name),
        judge=lambda machine: _judge_machine(settings, machine),
        remove=lambda machine: _remove_machine(settings, machine, snapshots_may_go=may_go),
    )
    bases = CopyKind[MachineBase](
        what=lambda _: "vm base",
        name=lambda base: base.name,
        listing=lambda: [base for base in catalogue.bases(settings) if base.phase in properties.HALF_MADE],
        lock=lambda base: locks.name_of_base(base.name),
        judge=lambda base: SweepVerdict.leak(f"half made (phase {base.phase})"),
        remove=lambda base: _remove_base(settings, base, snapshots_may_go=may_go),
    )
    limit = settings.clones.reap_limit
    return [*sweeping.sweep(machines, act=act, limit=limit), *sweeping.sweep(bases, act=act)]


def _judge_machine(settings: Settings, machine: Machine) -> SweepVerdict:
    if machine.phase in properties.HALF_MADE:
        return SweepVerdict.leak(f"half made (phase {machine.phase})")
    if machine.phase is MachinePhase.UNKNOWN:
        reason = f"{properties.PHASE_PROPERTY} was altered: {catalogue.altered_hint(machine)}"
        return SweepVerdict(LeaseVerdict.KEEP, reason)
    foreign = removal.others(machine.anchor, properties.machine_mark(machine.name))
    obstacles = [f"{clone} is a clone of it" for clone in foreign.clones]
    verdict = judge(machine.lease, obstacles, _UNUSED, catalogue.lease_policy(settings), now())
    return SweepVerdict(verdict.verdict, verdict.reason)


def _remove_machine(settings: Settings, machine: Machine, *, snapshots_may_go: bool) -> None:
    with connected(settings.vms.uri) as hypervisor:
        foreign = removal.others(machine.anchor, properties.machine_mark(machine.name))
        removal.refuse_others(f"the virtual machine {machine.name}", foreign, snapshots_may_go=snapshots_may_go)
        removal.remove_machine(settings, hypervisor, machine)


def _remove_base(settings: Settings, base: MachineBase, *, snapshots_may_go: bool) -> None:
    foreign = removal.others(base.anchor, properties.base_mark(base.name))
    removal.refuse_others(f"the base {base.name}", foreign, snapshots_may_go=snapshots_may_go)
    removal.remove_base(settings, base)
