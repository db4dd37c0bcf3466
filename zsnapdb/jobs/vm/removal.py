"""Removes bases and machines: first the domain, and then the datasets and files that belong to the base or machine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace

from zsnapdb.base.errors import NotFound, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.dataset_copies import sweep as sweeping
from zsnapdb.jobs.dataset_copies.catalogue import KnownCopies, dependents, destroying
from zsnapdb.jobs.dataset_copies.properties import HALF_MADE, CopyPhase, settle_lease
from zsnapdb.jobs.dataset_copies.sweep import CopyKind, ExtraRemoval, Leak, ReapOutcome
from zsnapdb.jobs.vm import catalogue
from zsnapdb.jobs.vm.catalogue import MACHINE_FILES, Machine, MachineBase, base_nvram, machine_file, own_domain
from zsnapdb.planning.clone.lease import CloneUse, JudgedLease, judge, judge_at, policy
from zsnapdb.vm.hypervisor import Hypervisor, connected
from zsnapdb.zfs import datasets, destruction, snapshots, zvols
from zsnapdb.zfs.destruction import Mark


@dataclass(frozen=True)
class ForeignSnapshots:
    """Objects that other programs created on the volumes: snapshots, clones of any snapshot, and bookmarks."""

    snapshots: tuple[str, ...]
    clones: tuple[str, ...]
    bookmarks: tuple[str, ...] = ()


def others(anchor: str, mark: Mark) -> ForeignSnapshots:
    """Return the objects that other programs created below the anchor: clones, bookmarks and unmarked snapshots."""
    foreign, clones = list[str](), list[str]()
    for snapshot, values in snapshots.below(anchor, (mark.name, "clones")).items():
        if not mark.is_on(values):
            foreign.append(snapshot.full_name)
        clones += dependents(values["clones"].value)
    return ForeignSnapshots(tuple(sorted(foreign)), tuple(sorted(clones)), tuple(datasets.bookmarks_below(anchor)))


def refuse_bookmarks(what: str, foreign: ForeignSnapshots) -> None:
    """Raise PreflightError if a bookmark prevents a rollback (zfs-rollback(8))."""
    if foreign.bookmarks:
        raise PreflightError(
            f"{what} has bookmarks, which backups made: {', '.join(foreign.bookmarks)}",
            hint="clone a new machine instead, or destroy the bookmarks (the next backup is then a full one)",
        )


def refuse_others(what: str, foreign: ForeignSnapshots, *, snapshots_may_go: bool) -> None:
    """Raise PreflightError if a clone or a foreign snapshot prevents the removal or the reset of `what`."""
    if foreign.clones:
        raise PreflightError(
            f"{what} has clones: {', '.join(foreign.clones)}", hint="destroy the clones first (`zsnapdb vm list`)"
        )
    if foreign.snapshots and not snapshots_may_go:
        raise PreflightError(
            f"{what} has snapshots that other programs made: {', '.join(foreign.snapshots)}",
            hint="destroy them, or give --with-foreign-snapshots where the command has it",
        )


def remove_machine(settings: Settings, hypervisor: Hypervisor, machine: Machine) -> None:
    """Power the machine off, undefine its domain, and destroy its datasets and files.

    The call can be repeated. Raises PreflightError, before any change, if a domain with the machine's UUID does not
    belong to the machine. Raises NotOursError if a dataset below the anchor lacks the machine's mark.
    """
    mark, known = catalogue.machine_mark(machine.name), own_domain(hypervisor, machine)
    with destroying(machine.anchor, mark) as members:
        if known is not None:
            hypervisor.power_off(machine.uuid)
            hypervisor.undefine(machine.uuid)
        destruction.destroy_datasets(members, mark, with_snapshots=True)
    for what in MACHINE_FILES:
        machine_file(settings, machine.name, what).unlink(missing_ok=True)


def remove_base(settings: Settings, base: MachineBase) -> None:
    """Destroy the datasets of the base, and remove its NVRAM file.

    If the base was created from a domain, also destroy the snapshots of the domain's disks that were made for the base.
    """
    mark = catalogue.base_mark(base.name)
    origins = [volume.origin for volume in zvols.describe(list(base.volumes.values())).values() if volume.origin]
    with destroying(base.anchor, mark) as members:
        destruction.destroy_datasets(members, mark, with_snapshots=True)
        for origin in origins:
            with contextlib.suppress(NotFound):
                destruction.destroy_snapshot(origin, mark)
    base_nvram(settings, base.name).unlink(missing_ok=True)


_UNUSED = CloneUse(0, None)
"""The use of a machine is always unknown, so only the lease decides how long a machine stays."""


def leaks(settings: Settings, host: Host) -> list[Leak]:
    """Return the leftovers of killed runs. A machine or base that another process uses now is not a leftover."""
    kinds = sweeping.leaks(_machines(settings, host)), sweeping.leaks(_bases(settings))
    return [*itertools.chain(*kinds), *_orphaned_domains(settings)]


def _leaks_of_machine(machine: Machine) -> list[Leak]:
    if machine.phase is CopyPhase.CHANGING:
        hint = f"run `zsnapdb vm reset {machine.name}` again"
        return [Leak("virtual machine whose reset was interrupted", machine.anchor, "", hint)]
    is_half_made = machine.phase in HALF_MADE
    return [Leak(f"half-made virtual machine (phase {machine.phase})", machine.anchor, "")] if is_half_made else []


def _orphaned_domains(settings: Settings) -> list[Leak]:
    """Return zsnapdb's domains whose datasets no longer exist; empty if libvirt cannot be used."""
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


def sweep(settings: Settings, host: Host, *, act: bool, also: Collection[ExtraRemoval] = ()) -> list[ReapOutcome]:
    """Remove incomplete machines, expired machines and incomplete bases.

    If `act` is false, return the plan and remove nothing.

    A machine with foreign snapshots stays, unless `also` allows the removal of these snapshots.
    """
    limit = settings.clones.reap_limit
    machines = sweeping.sweep(_machines(settings, host, also, act=act), act=act, limit=limit)
    return [*machines, *sweeping.sweep(_bases(settings, also), act=act)]


def _machines(
    settings: Settings, host: Host, also: Collection[ExtraRemoval] = (), *, act: bool = False
) -> CopyKind[Machine]:
    may_go = ExtraRemoval.FOREIGN_SNAPSHOTS in also
    return CopyKind[Machine](
        what="vm",
        known=lambda: catalogue.known_machines(settings),
        lock=lambda machine: catalogue.name_of_machine(machine.name),
        leaks=_leaks_of_machine,
        judge=lambda machine: _judge_machine(settings, host, machine, act=act),
        remove=lambda machine: _remove_machine(settings, machine, snapshots_may_go=may_go),
    )


def _bases(settings: Settings, also: Collection[ExtraRemoval] = ()) -> CopyKind[MachineBase]:
    """Return the rules by which a sweep removes bases. A complete base stays until a user destroys it."""
    may_go = ExtraRemoval.FOREIGN_SNAPSHOTS in also
    return CopyKind[MachineBase](
        what="vm base",
        known=lambda: _half_made_bases(settings),
        lock=lambda base: catalogue.name_of_base(base.name),
        leaks=lambda base: [Leak(f"half-made base (phase {base.phase})", base.anchor, "")],
        judge=lambda base: JudgedLease.leak(f"half made (phase {base.phase})"),
        remove=lambda base: _remove_base(settings, base, snapshots_may_go=may_go),
    )


def _half_made_bases(settings: Settings) -> KnownCopies[MachineBase]:
    known = catalogue.known_bases(settings)
    return replace(known, copies=[base for base in known.copies if base.phase in HALF_MADE])


def _judge_machine(settings: Settings, host: Host, machine: Machine, *, act: bool) -> JudgedLease:
    if machine.phase in HALF_MADE:
        return JudgedLease.leak(f"half made (phase {machine.phase})")
    foreign = others(machine.anchor, catalogue.machine_mark(machine.name))
    obstacles = [f"{clone} is a clone of it" for clone in foreign.clones]
    limits, time, lease = policy(settings.clones), removal_time(host), machine.lease
    lease = settle_lease(machine.anchor, machine.created, lease, time, act=act)
    return judge_at(lambda at: judge(lease, obstacles, _UNUSED, limits, at), time)


def _remove_machine(settings: Settings, machine: Machine, *, snapshots_may_go: bool) -> None:
    with connected(settings.vms.uri) as hypervisor:
        foreign = others(machine.anchor, catalogue.machine_mark(machine.name))
        refuse_others(f"the virtual machine {machine.name}", foreign, snapshots_may_go=snapshots_may_go)
        remove_machine(settings, hypervisor, machine)


def _remove_base(settings: Settings, base: MachineBase, *, snapshots_may_go: bool) -> None:
    foreign = others(base.anchor, catalogue.base_mark(base.name))
    refuse_others(f"the base {base.name}", foreign, snapshots_may_go=snapshots_may_go)
    remove_base(settings, base)
