"""The reaper of machines: removes expired machines, and what runs that died left behind. It has its part of `reap`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock import now
from zsnapdb.jobs.clone.destroy import GoesToo
from zsnapdb.jobs.clone.locks import if_free
from zsnapdb.jobs.clone.reaper import Leak, ReapOutcome
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

    Each is judged under its lock. An error with one does not stop the sweep. One with snapshots that others made stays,
    unless `also` lets them go.
    """
    return [*_machines(settings, act=act, also=also), *_bases(settings, act=act, also=also)]


def _machines(settings: Settings, *, act: bool, also: Collection[GoesToo]) -> Iterator[ReapOutcome]:
    taken = 0
    for known in catalogue.machines(settings):
        with if_free(locks.name_of_machine(known.name)) as free:
            if not free:
                yield ReapOutcome("vm", known.name, LeaseVerdict.KEEP, "another process is working on it")
                continue
            machine = next((m for m in catalogue.machines(settings) if m.name == known.name), None)
            if machine is None:
                continue
            try:
                outcome = _judged(settings, machine)
            except ZsnapdbError as error:
                yield ReapOutcome("vm", known.name, LeaseVerdict.KEEP, "it could not be judged", error)
                continue
            if outcome.verdict is LeaseVerdict.REAP and taken >= settings.clones.reap_limit:
                reason = (
                    f"{outcome.reason}; the next sweep removes it: clones.reap_limit is {settings.clones.reap_limit}"
                )
                outcome = ReapOutcome("vm", known.name, LeaseVerdict.KEEP, reason)
            taken += outcome.verdict is LeaseVerdict.REAP
            yield _done(outcome, act, _remover(settings, machine, also))


def _remover(settings: Settings, machine: Machine, also: Collection[GoesToo]) -> Callable[[], None]:
    def remove() -> None:
        with connected(settings.vms.uri) as hypervisor:
            foreign = removal.others(machine.anchor, properties.machine_mark(machine.name))
            may_go = GoesToo.FOREIGN_SNAPSHOTS in also
            removal.refuse_others(f"the virtual machine {machine.name}", foreign, snapshots_may_go=may_go)
            removal.remove_machine(settings, hypervisor, machine)

    return remove


def _judged(settings: Settings, machine: Machine) -> ReapOutcome:
    if machine.phase in properties.HALF_MADE:
        return ReapOutcome("vm", machine.name, LeaseVerdict.REAP, f"half made (phase {machine.phase})")
    if machine.phase is MachinePhase.UNKNOWN:
        reason = f"{properties.PHASE_PROPERTY} was altered: {catalogue.altered_hint(machine)}"
        return ReapOutcome("vm", machine.name, LeaseVerdict.KEEP, reason)
    foreign = removal.others(machine.anchor, properties.machine_mark(machine.name))
    obstacles = [f"{clone} is a clone of it" for clone in foreign.clones]
    verdict = judge(machine.lease, obstacles, _UNUSED, catalogue.lease_policy(settings), now())
    return ReapOutcome("vm", machine.name, verdict.verdict, verdict.reason)


def _bases(settings: Settings, *, act: bool, also: Collection[GoesToo]) -> Iterator[ReapOutcome]:
    for known in catalogue.bases(settings):
        if known.phase not in properties.HALF_MADE:
            continue
        with if_free(locks.name_of_base(known.name)) as free:
            base = next((base for base in catalogue.bases(settings) if base.name == known.name), None)
            if not free or base is None or base.phase not in properties.HALF_MADE:
                continue
            outcome = ReapOutcome("vm base", base.name, LeaseVerdict.REAP, f"half made (phase {base.phase})")
            yield _done(outcome, act, _base_remover(settings, base, also))


def _base_remover(settings: Settings, base: MachineBase, also: Collection[GoesToo]) -> Callable[[], None]:
    def remove() -> None:
        removal.refuse_others(
            f"the base {base.name}",
            removal.others(base.anchor, properties.base_mark(base.name)),
            snapshots_may_go=GoesToo.FOREIGN_SNAPSHOTS in also,
        )
        removal.remove_base(settings, base)

    return remove


def _done(outcome: ReapOutcome, act: bool, remove: Callable[[], None]) -> ReapOutcome:
    """Call `remove` if the verdict is to reap and `act` is true; return the outcome, with the error if it failed."""
    if not act or outcome.verdict is not LeaseVerdict.REAP:
        return outcome
    try:
        remove()
    except ZsnapdbError as error:
        return ReapOutcome(outcome.what, outcome.name, LeaseVerdict.KEEP, outcome.reason, error)
    return outcome
