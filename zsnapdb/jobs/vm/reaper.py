"""The reaper of machines: removes expired machines, and what runs that died left behind. It has its part of `reap`."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.removal_time import removal_time
from zsnapdb.jobs.copies import sweeping
from zsnapdb.jobs.copies.catalogue import KnownCopies
from zsnapdb.jobs.copies.properties import HALF_MADE, CopyPhase, settle_lease
from zsnapdb.jobs.copies.sweeping import CopyKind, GoesToo, Leak, ReapOutcome, SweepVerdict
from zsnapdb.jobs.vm import catalogue, locks, properties, removal
from zsnapdb.jobs.vm.catalogue import Machine, MachineBase
from zsnapdb.planning.clone.lease import CloneUse, judge, judge_at
from zsnapdb.vm.hypervisor import connected
from zsnapdb.zfs import datasets

_UNUSED = CloneUse(0, None)
"""Who uses a machine is not asked: its lease alone says how long it stays."""


def leaks(settings: Settings, host: Host) -> list[Leak]:
    """Return what runs that died left behind. What another process works on now is not a leak."""
    kinds = sweeping.leaks(_machines(settings, host)), sweeping.leaks(_bases(settings))
    return [*itertools.chain(*kinds), *_orphaned_domains(settings)]


def _leaks_of_machine(machine: Machine) -> list[Leak]:
    if machine.phase is CopyPhase.CHANGING:
        hint = f"run `zsnapdb vm reset {machine.name}` again"
        return [Leak("virtual machine whose reset was interrupted", machine.anchor, "", hint)]
    is_half_made = machine.phase in HALF_MADE
    return [Leak(f"half-made virtual machine (phase {machine.phase})", machine.anchor, "")] if is_half_made else []


def _leaks_of_base(base: MachineBase) -> list[Leak]:
    return [Leak(f"half-made base (phase {base.phase})", base.anchor, "")]


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


def sweep(settings: Settings, host: Host, *, act: bool, also: Collection[GoesToo] = ()) -> list[ReapOutcome]:
    """Remove half-made and expired machines and half-made bases, or say what would be removed (`act` false).

    One with snapshots that others made stays, unless `also` lets them go.
    """
    limit = settings.clones.reap_limit
    machines = sweeping.sweep(_machines(settings, host, also, act=act), act=act, limit=limit)
    return [*machines, *sweeping.sweep(_bases(settings, also), act=act)]


def _machines(
    settings: Settings, host: Host, also: Collection[GoesToo] = (), *, act: bool = False
) -> CopyKind[Machine]:
    may_go = GoesToo.FOREIGN_SNAPSHOTS in also
    return CopyKind[Machine](
        what="vm",
        known=lambda: catalogue.known_machines(settings),
        lock=lambda machine: locks.name_of_machine(machine.name),
        leaks=_leaks_of_machine,
        judge=lambda machine: _judge_machine(settings, host, machine, act=act),
        remove=lambda machine: _remove_machine(settings, machine, snapshots_may_go=may_go),
    )


def _bases(settings: Settings, also: Collection[GoesToo] = ()) -> CopyKind[MachineBase]:
    """Return the half-made bases. A complete one stays until a person destroys it."""
    may_go = GoesToo.FOREIGN_SNAPSHOTS in also
    return CopyKind[MachineBase](
        what="vm base",
        known=lambda: _half_made_bases(settings),
        lock=lambda base: locks.name_of_base(base.name),
        leaks=_leaks_of_base,
        judge=lambda base: SweepVerdict.leak(f"half made (phase {base.phase})"),
        remove=lambda base: _remove_base(settings, base, snapshots_may_go=may_go),
    )


def _half_made_bases(settings: Settings) -> KnownCopies[MachineBase]:
    known = catalogue.known_bases(settings)
    return replace(known, copies=[base for base in known.copies if base.phase in HALF_MADE])


def _judge_machine(settings: Settings, host: Host, machine: Machine, *, act: bool) -> SweepVerdict:
    if machine.phase in HALF_MADE:
        return SweepVerdict.leak(f"half made (phase {machine.phase})")
    foreign = removal.others(machine.anchor, properties.machine_mark(machine.name))
    obstacles = [f"{clone} is a clone of it" for clone in foreign.clones]
    limits, time, lease = catalogue.lease_policy(settings), removal_time(host), machine.lease
    if act:
        lease = settle_lease(machine.anchor, machine.created, lease, time)
    verdict = judge_at(lambda at: judge(lease, obstacles, _UNUSED, limits, at), time)
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
