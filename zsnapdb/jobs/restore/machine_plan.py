"""Reads repository and host and makes the plan of a restore of a virtual machine. Nothing is changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from zsnapdb.base.errors import ExistsError, NotThere, PreflightError, UsageError
from zsnapdb.base.model import pool_of
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.capacity import pool_for_copy
from zsnapdb.jobs.host.site_settings import notes_on_site, site_commands
from zsnapdb.jobs.restore import newest, raw_keys
from zsnapdb.jobs.restore.plan import refuse_no_parent
from zsnapdb.planning.chain import restore_chain
from zsnapdb.planning.dataset_properties import data_values
from zsnapdb.planning.order import is_after
from zsnapdb.planning.restore.machine import (
    CheckVolumes,
    DefineDomain,
    MachinePreflight,
    MachineRestorePlan,
    MachineStep,
    VolumeCheck,
)
from zsnapdb.planning.restore.newest import UnusableBackup, asks_for_newest, refusal
from zsnapdb.planning.restore.steps import MakeTop, Receive
from zsnapdb.planning.restore.targets import AtBackup, Latest, Target, ago, parse_target
from zsnapdb.planning.vm.domain import parse
from zsnapdb.planning.vm.request import checked_name
from zsnapdb.planning.vm.restored_domain import HostBoot, RestoredIdentity, restored
from zsnapdb.repository.manifest import Manifest, VolumePart, ZvolType
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.sources import MachineSourcePart
from zsnapdb.repository.verifications import known_damage
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, Hypervisor, connected
from zsnapdb.zfs import datasets, zvols

Connect = Callable[[str], AbstractContextManager[Hypervisor]]


@dataclass(frozen=True)
class MachineRestoreRequest:
    """The requested restore: a backup of the machine, and the target dataset.

    The target is `top`, or `name` below our own datasets. The last part of the target is the name of the new domain.
    `accepts_older`: if the newest backup cannot be used, restore the newest that can. `domain` None: the name of the
    domain is the last part of the target. `makes_parent`: the dataset above the target is made when the plan is
    executed. `memory` (bytes) None: the machine gets as much as the original has.
    """

    to: str = "latest"
    top: str | None = None
    name: str | None = None
    accepts_older: bool = False
    domain: str | None = None
    makes_parent: bool = False
    memory: int | None = None


def make(
    settings: Settings,
    instance: Instance,
    repository: Repository,
    request: MachineRestoreRequest,
    connect: Connect = connected,
) -> MachineRestorePlan:
    """Return the plan.

    Raises an error, before anything is changed, if there is no such backup of a machine, if the chain is broken, or if
    the target dataset or a domain of its name exists.
    """
    request = replace(request, to=ago(request.to, instance.host.now()))
    target = parse_target(request.to)
    if not isinstance(target, Latest | AtBackup):
        raise UsageError(
            f"--to {request.to} is a point between backups, and a virtual machine has none",
            hint="give latest, or the id of a backup (`zsnapdb list`)",
        )
    manifest, manifests, notes = _chosen(instance, repository, target, request)
    source = machine_source(manifest)
    damaged = known_damage(repository, instance.name).stored()
    chain = restore_chain(manifests, manifest, damaged) if not manifest.is_full else (manifest,)
    for link in chain:
        repository.ciphers(link)
    top = request.top or _default_top(manifest, request.name or f"{instance.name.replace('_', '-')}-restored")
    domain = checked_name(request.domain or top.rpartition("/")[2])
    refuse_no_parent(top, is_own=request.top is None or request.makes_parent)
    refuse_existing(top)
    places = {volume.role: f"{top}/{volume.role}" for volume in manifest.volumes}
    restore_id = instance.host.new_backup_id()
    place = RestoredPlace(domain, top, restore_id, places, host_boot(instance), request.memory)
    defines = _define(source, place, settings, connect)
    return MachineRestorePlan(
        restore_id=restore_id,
        instance=instance.name,
        repository=repository.id,
        requested=request.to,
        created=instance.host.now(),
        backup_id=manifest.backup_id,
        grade=source.grade.value,
        grade_reason=source.reason,
        original=source.domain,
        top=top,
        datasets=places,
        notes=(*notes, *defines.notes, *(() if request.makes_parent else _site_notes(manifest, places))),
        steps=(*_receiving(instance, chain, top, places), _checking(manifest, places), *defines.steps),
        repository_name=instance.other_repository,
    )


def machine_source(manifest: Manifest) -> MachineSourcePart:
    """Return a backup's source if it is a virtual machine. PreflightError if the source is of another kind."""
    if isinstance(manifest.source, MachineSourcePart):
        return manifest.source
    raise PreflightError(
        f"backup {manifest.backup_id} is a backup of kind {manifest.source.kind}, not of a virtual machine",
        hint="choose a backup of a virtual machine, see `zsnapdb list`",
    )


def _chosen(
    instance: Instance, repository: Repository, target: Latest | AtBackup, request: MachineRestoreRequest
) -> tuple[Manifest, Sequence[Manifest], tuple[str, ...]]:
    """Return the backup, all backups, and notes. DamagedError if something newer was stored that cannot be used."""
    if isinstance(target, AtBackup) and target.backup_id is not None:
        # A damaged manifest is reported as damaged and not as missing.
        repository.manifest(instance.name, target.backup_id)
    catalogue, checked = newest.catalogue_of(instance, repository, None)
    newest.refuse_without_any(catalogue, checked, target, request.to)
    possible = newest.choosable(catalogue, checked, target)
    if isinstance(target, AtBackup) and target.backup_id is not None:
        possible = tuple(manifest for manifest in possible if manifest.backup_id == target.backup_id)
    if not possible:
        raise NotThere(f"there is no backup of {instance.name}", hint=f"run `zsnapdb backup {instance.name}`")
    manifest = possible[-1]
    machine_source(manifest)
    notes = _newer(manifest, newest.unusable(catalogue, checked), checked.order, target, request)
    return (
        manifest,
        checked.provenance.trusted(catalogue.manifests),
        (*notes, *newest.notes_beside(manifest.backup_id, catalogue, checked, target)),
    )


def _newer(
    chosen: Manifest,
    unusable: Sequence[UnusableBackup],
    order: Sequence[str],
    target: Target,
    request: MachineRestoreRequest,
) -> tuple[str, ...]:
    if not asks_for_newest(target):
        return ()
    newer = [f"backup {u.backup_id}: {u.why}" for u in unusable if is_after(u.backup_id, chosen.backup_id, order)]
    if newer and not request.accepts_older:
        raise refusal(request.to, f"backup {chosen.backup_id}", newer)
    return tuple(f"newer, and cannot be used: {text}" for text in newer)


def refuse_existing(top: str) -> None:
    """Raise ExistsError if the target dataset exists."""
    if datasets.exists(top):
        raise ExistsError(
            f"the target dataset {top} exists",
            hint="name a new dataset; to continue a restore that was begun, use --resume",
        )


def refuse_taken(hypervisor: Hypervisor, domain: str) -> None:
    """Raise ExistsError if libvirt has a domain of that name."""
    if domain in {known.domain.name for known in hypervisor.domains()}:
        raise ExistsError(
            f"libvirt has a domain {domain}",
            hint="name a target whose last part is no domain's name (`virsh list --all`)",
        )


def _default_top(manifest: Manifest, name: str) -> str:
    pool = pool_for_copy(manifest.volumes[0].dataset, "name a dataset with --target")
    return f"{pool}/zsnapdb/restored/{name}"


@dataclass(frozen=True)
class RestoredPlace:
    """Where a machine is restored: its new name, the dataset above its zvols, the restore, the zvol of each role.

    `boot` and `memory` are those of the new domain, see `RestoredIdentity`.
    """

    domain: str
    top: str
    restore_id: str
    datasets: dict[str, str]
    boot: HostBoot | None = None
    memory: int | None = None


def host_boot(instance: Instance) -> HostBoot | None:
    """Return the files of this host that the instance's machine is configured to boot from, if it is."""
    machine = instance.settings.vm
    if machine is None or machine.boot is None:
        return None
    return HostBoot(machine.boot.kernel, machine.boot.initrd, machine.boot.cmdline)


@dataclass(frozen=True)
class _Defining:
    steps: tuple[DefineDomain, ...]
    notes: tuple[str, ...]


def _define(source: MachineSourcePart, place: RestoredPlace, settings: Settings, connect: Connect) -> _Defining:
    """Return the step that defines the domain, or a note why there is none."""
    text = source.xml
    targets = {disk.target for disk in parse(text).volumes} if text is not None else set()
    if text is None or targets != set(place.datasets):
        listed = f"disks {', '.join(sorted(targets)) or 'unknown'}, volumes {', '.join(sorted(place.datasets))}"
        return _Defining((), (f"no domain is defined: the description in the backup does not fit it ({listed})",))
    with connect(settings.vms.uri) as hypervisor:
        refuse_taken(hypervisor, place.domain)
    identity = RestoredIdentity(
        name=place.domain,
        uuid=str(uuid.uuid4()),
        generation=str(uuid.uuid4()),
        dataset=place.top,
        restore_id=place.restore_id,
        disks={role: str(zvols.link_of(dataset)) for role, dataset in place.datasets.items()},
        boot=place.boot,
        memory=place.memory,
    )
    made = restored(text, identity, ISOLATED_NETWORK)
    notes = tuple(f"the restored domain lacks {part}" for part in made.left_out)
    return _Defining((DefineDomain(place.domain, identity.uuid, ISOLATED_NETWORK, made.xml),), notes)


def _zvol(volume: VolumePart) -> ZvolType:
    if isinstance(volume.type, ZvolType):
        return volume.type
    raise PreflightError(
        f"volume {volume.role} ({volume.dataset}) is a {volume.type.kind}, not a zvol", hint="restore another backup"
    )


def _receiving(
    instance: Instance, chain: Sequence[Manifest], top: str, places: dict[str, str]
) -> tuple[MachineStep, ...]:
    volumes = [(manifest, volume) for manifest in chain for volume in manifest.volumes]
    features = 0
    for _, volume in volumes:
        _zvol(volume)
        features |= volume.features
    preflight = MachinePreflight(
        pool=pool_of(top),
        parent=top.rpartition("/")[0],
        plain_bytes=sum(manifest.plain_size for manifest in chain),
        stored_bytes=sum(manifest.stored_size for manifest in chain),
        features=features,
        zfs_version=chain[-1].zfs_version,
        backups=tuple(manifest.backup_id for manifest in chain),
        encrypted=chain[-1].encrypted,
        raw=chain[-1].raw,
    )
    receives = tuple(
        Receive(
            backup_id=manifest.backup_id,
            role=volume.role,
            dataset=places[volume.role],
            mountpoint="",
            snapshot=volume.snapshot,
            guid=volume.guid,
            from_guid=volume.from_guid,
            plain_bytes=volume.plain_size,
            stored_bytes=volume.stored_size,
            key_location=raw_keys.key_location(instance) if volume.is_raw else None,
        )
        for manifest, volume in volumes
        if volume.role in places
    )
    return (preflight, MakeTop(top), *receives)


def _site_notes(manifest: Manifest, places: dict[str, str]) -> tuple[str, ...]:
    """Return the commands that set what the site had set on the zvols, as notes."""
    volumes = [(places[volume.role], _zvol(volume).site) for volume in manifest.volumes]
    return notes_on_site(command for place, site in volumes for command in site_commands(place, site))


def _checking(manifest: Manifest, places: dict[str, str]) -> CheckVolumes:
    return CheckVolumes(
        tuple(
            VolumeCheck(
                role=volume.role,
                dataset=places[volume.role],
                snapshot=volume.snapshot,
                guid=volume.guid,
                size=_zvol(volume).volsize,
                properties=data_values(volume.type.properties, "volume"),
            )
            for volume in manifest.volumes
        )
    )
