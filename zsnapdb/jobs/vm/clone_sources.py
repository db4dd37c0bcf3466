"""Finds the origin of cloned machines. It is a base, or a backup of an instance that is a machine.

`NAME` means the base with that name. If no base has that name, `NAME` means the newest backup of the instance NAME on
this host. `NAME@latest` and `NAME@ID` are always backups of the instance. The snapshots of the backup must be on this
host, because backups are not fetched from the repository.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.domain_types import SnapshotSet, is_backup_id, pool_of
from zsnapdb.base.errors import NotFound, PreflightError, UnknownNameError, UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import GRADE_PROPERTY
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.host.local_snapshot_sets import local_sets
from zsnapdb.jobs.vm import catalogue
from zsnapdb.jobs.vm.catalogue import MachineBase
from zsnapdb.planning.vm import request
from zsnapdb.planning.vm.clone_domain import obstacles
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.planning.vm.domain import Domain, parse
from zsnapdb.planning.vm.request import LATEST_BACKUP, MachineOriginName, ZvolSpace
from zsnapdb.vm.hypervisor import Hypervisor
from zsnapdb.zfs import datasets, zvols


@dataclass(frozen=True)
class MachineOrigin:
    """The origin of cloned machines.

    `name` is the name of the base, or INSTANCE@BACKUP. `home` is the parent dataset of the clones. `snapshots` contains
    the snapshot of each disk by target, and `guids` the GUIDs of these snapshots. Each clone gets a copy of the NVRAM
    file `nvram`. `grade` is the consistency level of the backup. It is None for a base, because the disks of a base
    were not in use.
    """

    name: str
    made_of: str
    home: str
    xml: str
    snapshots: Mapping[str, str]
    guids: Mapping[str, int]
    spaces: tuple[ZvolSpace, ...]
    nvram: Path | None
    grade: Grade | None = None

    @property
    def words(self) -> str:
        if self.grade is None:
            return f"base      {self.name}, made of {self.made_of}"
        return f"backup    {self.name} of the {self.made_of}, grade {self.grade}"


def locked(text: str) -> contextlib.AbstractContextManager[None]:
    """Prevent the removal of the base during the `with` block.

    A backup needs no such lock, because ZFS does not destroy a snapshot that has clones.
    """
    named = request.origin_name(text)
    return catalogue.on_base(named.name) if named.backup is None else contextlib.nullcontext()


def find(settings: Settings, hypervisor: Hypervisor, text: str) -> MachineOrigin:
    """Return the origin with the name `text`; change nothing.

    Raises NotFound if no base and no machine has the name, or if this host has no snapshots of a suitable backup.
    Raises PreflightError if the machine cannot be cloned.
    """
    named = request.origin_name(text)
    known = catalogue.known_bases(settings)
    if named.backup is None and (base := copies.find_or_none(known, named.name)) is not None:
        return _of_base(settings, base)
    machines = {name for name, instance in settings.instance.items() if instance.vm is not None}
    if named.name in machines:
        return _of_backup(settings, hypervisor, named)
    if named.name in settings.instance:
        raise PreflightError(
            f"the instance {named.name} is a server, not a virtual machine",
            hint=f"clone the server: `zsnapdb clone create {named.name}`",
        )
    bases = ", ".join(base.name for base in known.copies)
    raise UnknownNameError(
        f"there is no base {named.name!r}, and no instance of that name is a virtual machine",
        hint=f"existing bases: {bases or 'none'}; machines: {', '.join(sorted(machines)) or 'none'}",
    )


def _of_base(settings: Settings, base: MachineBase) -> MachineOrigin:
    xml = copies.complete("base", base).domain_xml
    request.refuse_obstacles(base.name, obstacles(xml))
    targets = [disk.target for disk in parse(xml).volumes]
    if sorted(targets) != sorted(base.volumes):
        raise PreflightError(
            f"the base {base.name} has the volumes {', '.join(sorted(base.volumes))}, its domain the disks"
            f" {', '.join(sorted(targets))}",
            hint="make the base again",
        )
    made = {target: f"{name}@{catalogue.BASE_SNAPSHOT}" for target, name in base.volumes.items()}
    guids = datasets.guids(list(made.values()))
    return MachineOrigin(
        name=base.name,
        made_of=base.made_of,
        home=base.anchor.rpartition("/bases/")[0],
        xml=xml,
        snapshots=made,
        guids={target: guids[name] for target, name in made.items()},
        spaces=catalogue.spaces(base.volumes),
        nvram=catalogue.base_nvram(settings, base.name) if parse(xml).nvram is not None else None,
    )


def _of_backup(settings: Settings, hypervisor: Hypervisor, named: MachineOriginName) -> MachineOrigin:
    instance = Instance.of(settings, named.name)
    vm = instance.settings.vm
    assert vm is not None
    known = hypervisor.named(vm.domain)
    request.refuse_obstacles(known.domain.name, obstacles(known.xml))
    volumes = zvols_of(known.domain)
    request.refuse_other_pools([pool_of(dataset) for dataset in volumes.values()])
    chosen = _choose_set(named, local_sets(instance.with_volumes(volumes)))
    snapshots = {target: snapshot.full_name for target, snapshot in chosen.snapshots.items()}
    return MachineOrigin(
        name=f"{named.name}@{chosen.backup_id}",
        made_of=f"virtual machine {known.domain.name}",
        home=catalogue.home(settings, pool_of(next(iter(volumes.values())))),
        xml=known.xml,
        snapshots=snapshots,
        guids={target: snapshot.guid for target, snapshot in chosen.snapshots.items()},
        # A volume may have grown since.
        spaces=tuple(
            replace(one, size=int(datasets.properties(snapshots[one.target], ["volsize"])["volsize"].value))
            for one in catalogue.spaces(volumes)
        ),
        nvram=Path(known.domain.nvram) if known.domain.nvram else None,
        grade=_grade(list(snapshots.values())),
    )


def _choose_set(named: MachineOriginName, there: Sequence[SnapshotSet]) -> SnapshotSet:
    fitting = [s for s in there if named.backup in (None, LATEST_BACKUP) or s.backup_id == named.backup]
    if fitting:
        return fitting[-1]
    if named.backup is not None and named.backup != LATEST_BACKUP and not is_backup_id(named.backup):
        raise UsageError(
            f"{named.backup[:80]!r} is not the id of a backup",
            hint=f"give {named.name}@latest, or an id that `zsnapdb list {named.name}` prints",
        )
    what = "no backup" if named.backup in (None, LATEST_BACKUP) else f"not the backup {named.backup}"
    listed = ", ".join(item.backup_id for item in there) or "none"
    raise NotFound(
        f"this host has {what} of {named.name} as snapshots of all its disks (there: {listed})",
        hint=f"restore it (`zsnapdb restore {named.name} --target POOL/NAME`), then make a base of the restored machine"
        " (`zsnapdb vm base create NAME --from-domain NAME`)",
    )


def _grade(names: Sequence[str]) -> Grade:
    """Return the lowest consistency level of the snapshots. A snapshot without a readable level counts as CRASH."""
    grades_of_disks = [datasets.properties(name, [GRADE_PROPERTY])[GRADE_PROPERTY].value for name in names]
    grades = [Grade(value) if value in set(Grade) else Grade.CRASH for value in grades_of_disks]
    return min(grades, key=lambda item: item.rank)


def zvols_of(domain: Domain) -> dict[str, str]:
    """Return the dataset of each disk of the domain, found by the disk's device.

    Raises PreflightError if a disk is not a zvol.
    """
    by_target = {}
    for disk in domain.volumes:
        dataset = zvols.dataset_behind(Path(disk.source)) if disk.kind == "block" and disk.source else None
        if dataset is None:
            raise PreflightError(
                f"the disk {disk.target} of the domain {domain.name} is not a zvol of this host: {disk.kind}"
                f" {disk.source or 'without a source'}",
                hint="machines are cloned from zvols; make a base of the disk with `vm base create --image`",
            )
        if zvols.is_partition(Path(disk.source or "")):
            raise PreflightError(
                f"the disk {disk.target} of the domain {domain.name} is a partition of the zvol {dataset}",
                hint="give the machine the whole zvol",
            )
        by_target[disk.target] = dataset
    if not by_target:
        raise PreflightError(f"the domain {domain.name} has no disk", hint="see `virsh domblklist`")
    return by_target
