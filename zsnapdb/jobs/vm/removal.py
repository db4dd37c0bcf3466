"""Removes bases and machines: the domain first, then exactly the datasets and files that are theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.vm import properties
from zsnapdb.jobs.vm.catalogue import (
    Machine,
    MachineBase,
    first_nvram_file,
    nvram_file,
    own_domain,
    seed_file,
    serial_log,
)
from zsnapdb.vm.hypervisor import Hypervisor
from zsnapdb.zfs import datasets, owned, snapshots, zvols
from zsnapdb.zfs.owned import Mark


@dataclass(frozen=True)
class OthersSnapshots:
    """What others made of the volumes: snapshots, datasets that were cloned from any snapshot, and bookmarks."""

    snapshots: tuple[str, ...]
    clones: tuple[str, ...]
    bookmarks: tuple[str, ...] = ()


def others(anchor: str, mark: Mark) -> OthersSnapshots:
    """Return the snapshots below the anchor without our mark, and all clones of snapshots below it."""
    foreign, clones = [], []
    for snapshot, values in snapshots.below(anchor, (mark.name, "clones")).items():
        if not mark.is_on(values):
            foreign.append(snapshot.full_name)
        clones += [clone for clone in values["clones"].value.split(",") if clone not in ("", datasets.UNSET)]
    return OthersSnapshots(tuple(sorted(foreign)), tuple(sorted(clones)), tuple(datasets.bookmarks_below(anchor)))


def refuse_bookmarks(what: str, foreign: OthersSnapshots) -> None:
    """Raise PreflightError if a bookmark is in the way of a rollback (zfs-rollback(8))."""
    if foreign.bookmarks:
        raise PreflightError(
            f"{what} has bookmarks, which backups made: {', '.join(foreign.bookmarks)}",
            hint="clone a new machine instead; or destroy the bookmarks, and the next backup is a full one",
        )


def refuse_others(what: str, foreign: OthersSnapshots, *, snapshots_may_go: bool) -> None:
    """Raise PreflightError if something of others is in the way of removing or resetting `what`."""
    if foreign.clones:
        raise PreflightError(
            f"{what} has clones: {', '.join(foreign.clones)}", hint="destroy the clones first (`zsnapdb vm list`)"
        )
    if foreign.snapshots and not snapshots_may_go:
        raise PreflightError(
            f"{what} has snapshots that others made: {', '.join(foreign.snapshots)}",
            hint="destroy them, or give --with-foreign-snapshots where the command has it",
        )


def remove_machine(settings: Settings, hypervisor: Hypervisor, machine: Machine) -> None:
    """End the machine, let libvirt forget its domain, and destroy its datasets and files.

    It can be repeated. PreflightError, and nothing is changed, if a domain with its UUID is not its own. NotOursError
    if a dataset below its anchor does not carry its mark.
    """
    mark = properties.machine_mark(machine.name)
    members = owned.members(machine.anchor, mark)
    known = own_domain(hypervisor, machine)
    if members:
        datasets.set_properties(machine.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.DESTROYING})
    if known is not None:
        hypervisor.power_off(machine.uuid)
        hypervisor.undefine(machine.uuid)
    owned.destroy_datasets([name for name in members if name != machine.anchor], mark, with_snapshots=True)
    owned.destroy_datasets([name for name in members if name == machine.anchor], mark)
    for file in (
        nvram_file(settings, "machines", machine.name),
        first_nvram_file(settings, machine.name),
        seed_file(settings, machine.name),
        serial_log(settings, machine.name),
    ):
        file.unlink(missing_ok=True)


def remove_base(settings: Settings, base: MachineBase) -> None:
    """Destroy the base's datasets, its file, and the snapshots of a domain's disks that it was cloned from."""
    mark = properties.base_mark(base.name)
    members = owned.members(base.anchor, mark)
    origins = _origins(list(base.volumes.values()))
    if members:
        datasets.set_properties(base.anchor, {copy_properties.PHASE_PROPERTY: CopyPhase.DESTROYING})
    owned.destroy_datasets([name for name in members if name != base.anchor], mark, with_snapshots=True)
    for origin in origins:
        with contextlib.suppress(NotThere):
            owned.destroy_snapshot(origin, mark)
    owned.destroy_datasets([name for name in members if name == base.anchor], mark)
    nvram_file(settings, "bases", base.name).unlink(missing_ok=True)


def _origins(volumes: Sequence[str]) -> list[str]:
    return [volume.origin for volume in zvols.describe(list(volumes)).values() if volume.origin]
