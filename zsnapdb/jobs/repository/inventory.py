"""Lists the instances and backups in a repository, and their snapshots on this host. Sets and removes pins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, NotFound, PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.patterns import INSTANCE
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import own_snapshots
from zsnapdb.jobs.base.snapshot_set_properties import REPOSITORY_PROPERTY, STORED
from zsnapdb.jobs.host.local_snapshot_sets import sets_among
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.host_backup_record import StoredCheck
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT, restore_chain
from zsnapdb.planning.creation_order import is_after
from zsnapdb.planning.damage_register import KnownDamage
from zsnapdb.planning.repository.absent_repository import nothing_there
from zsnapdb.planning.repository.host_backup_record import StoredFinding
from zsnapdb.planning.server_copy.recorded_settings import RecordedSettings, recorded_settings
from zsnapdb.repository import backup_marks, layout
from zsnapdb.repository.backup_marks import Pin, Unfinished, unfinished
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.manifest_source import ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.zfs import datasets
from zsnapdb.zfs.snapshots import OwnedSnapshot

_FIRST_BACKUP_HINT = "run `zsnapdb backup`; if there were backups, check `url` of the repository"


@dataclass(frozen=True)
class InventoryEntry:
    """A backup, and whether this host has its snapshots.

    If this host has the snapshots, it can clone the backup without receiving it.
    """

    manifest: Summary
    is_local: bool


@dataclass(frozen=True)
class Detail:
    """A backup, the chain that its restore needs (full backup first), and the known damage of that chain."""

    entry: InventoryEntry
    chain: tuple[Summary, ...]
    missing: tuple[StoredFinding, ...] = ()
    """Differences between the repository and the backups that this host stored."""
    damage: tuple[KnownDamage, ...] = ()


def _own_snapshots(instance: Instance) -> list[OwnedSnapshot] | None:
    """Return the snapshots of the instance's stored sets on this host, with the ids of their repositories.

    Return None if no volumes are configured, or if this host lacks a volume.
    """
    volumes = instance.settings.volumes
    if volumes is None or not all(datasets.exists(dataset) for dataset in volumes.values()):
        return None
    return own_snapshots(instance, set(volumes.values()), (REPOSITORY_PROPERTY,), states=(STORED,))


def _local_guids(
    instance: Instance, manifests: Sequence[Summary], seen: Sequence[OwnedSnapshot] | None
) -> set[frozenset[int]]:
    """Return the snapshot GUIDs of each backup whose set has snapshots on this host.

    If no volumes are configured, the volumes of the newest backup are used. `seen` is the result of `_own_snapshots`.
    """
    if seen is None:
        if instance.settings.volumes is not None or not manifests:
            # If the instance has never run on this host, there are no snapshots.
            return set()
        instance = instance.with_volumes({volume.role: volume.dataset for volume in manifests[-1].volumes})
        seen = _own_snapshots(instance)
    sets = sets_among(instance, seen or ())
    return {frozenset(one.guid for one in known.set.snapshots.values()) for known in sets}


def _is_local(backup: Summary, here: set[frozenset[int]]) -> bool:
    return frozenset(volume.guid for volume in backup.volumes) in here


@dataclass(frozen=True)
class Inventory:
    """The backups of an instance, oldest first, the errors of unreadable backups, and the unfinished backups.

    `damage` contains the known damage of each backup's chain, by backup id.
    """

    entries: tuple[InventoryEntry, ...]
    damaged: tuple[DamagedError, ...]
    unfinished: tuple[Unfinished, ...] = ()
    missing: tuple[StoredFinding, ...] = ()
    """Differences between the repository and the backups that this host stored."""
    damage: Mapping[str, tuple[KnownDamage, ...]] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    """The reason why this host does not know a backup, by backup id. On a host that knows no backups, this is empty."""


def inventory(instance: Instance) -> Inventory:
    """Return the inventory of the instance."""
    repository = instance.open_repository()
    seen = _own_snapshots(instance)
    known, checked = host_backup_record.checked_backups(instance, repository, seen=seen)
    present = [backup for backup in known.backups if backup.backup_id not in checked.unchosen]
    local = _local_guids(instance, present, seen)
    entries = tuple(InventoryEntry(backup, _is_local(backup, local)) for backup in known.backups)
    marks = tuple(
        unfinished(repository, instance.name, [entry.manifest.backup_id for entry in entries] + sorted(known.unread))
    )
    damage = known_damage(repository, instance.name).of_chains(checked.provenance.trusted(known.backups))
    return Inventory(
        entries, tuple(known.unreadable.values()), marks, checked.findings, damage, checked.provenance.unchosen
    )


def detail(instance: Instance, backup_id: str) -> Detail:
    """Return one backup with its chain.

    Raises:
        NotFound: the backup does not exist.
        DamagedError: the chain is incomplete, or `latest` is requested but a newer stored backup cannot be used.
    """
    repository = instance.open_repository()
    seen = _own_snapshots(instance)
    known, checked = host_backup_record.checked_backups(instance, repository, seen=seen)
    backups = known.backups
    present = [backup for backup in backups if backup.backup_id not in checked.unchosen]
    chosen = present[-1] if backup_id == "latest" and present else Summary.read(repository, instance.name, backup_id)
    if backup_id == "latest":
        _refuse_older(chosen, known, checked)
    entry = InventoryEntry(chosen, _is_local(chosen, _local_guids(instance, present, seen)))
    known_bad = known_damage(repository, instance.name)
    chain = restore_chain(checked.provenance.trusted(backups), chosen, known_bad.stored())
    damage = known_bad.of_chain([link.backup_id for link in chain])
    return Detail(entry, chain, checked.findings, damage)


@dataclass(frozen=True)
class BackupSettings:
    """The settings of the server that a backup recorded."""

    backup_id: str
    instance: str
    created: datetime
    flavour: Flavour
    server_version: str
    variables: Mapping[str, str]
    recorded: RecordedSettings


def backup_settings(instance: Instance, backup_id: str) -> BackupSettings:
    """Return the recorded settings of one backup. Raises the errors of `detail`.

    Raises:
        PreflightError: the backup is of a virtual machine.
    """
    chosen = detail(instance, backup_id).entry.manifest
    manifest = instance.open_repository().manifest(instance.name, chosen.backup_id)
    if not isinstance(manifest.source, ServerSourcePart):
        raise PreflightError(
            f"backup {manifest.backup_id} is of a virtual machine, and records no settings of a server",
            hint=f"restore the machine: `zsnapdb restore {instance.name} --to {manifest.backup_id} --plan`",
        )
    server = manifest.source.server
    recorded = recorded_settings(server.variables, server.server_id)
    return BackupSettings(
        manifest.backup_id, instance.name, manifest.created, server.flavour, server.version, server.variables, recorded
    )


def _refuse_older(chosen: Summary, known: Summaries, checked: StoredCheck) -> None:
    """Raise DamagedError if a stored backup is newer than the chosen backup but cannot be used."""
    unusable = {name: error.message for name, error in known.unreadable.items()}
    unusable |= {missing.backup_id: "the repository lacks it" for missing in checked.missing}
    later = [backup.backup_id for backup in known.backups[known.backups.index(chosen) + 1 :]]
    unusable |= {name: "it is from the future" for name in later if name in checked.doubtful_future}
    newer = [name for name in unusable if is_after(name, chosen.backup_id, checked.order)]
    if newer:
        raise DamagedError(
            f"the newest backup that can be read is {chosen.backup_id}, but newer ones were stored: "
            + "; ".join(f"{name}: {unusable[name]}" for name in newer[:5]),
            hint=f"`zsnapdb show {chosen.instance} {chosen.backup_id}` shows that backup",
        )


@dataclass(frozen=True)
class StoredInstance:
    """An instance in a repository. `backups` is the number of its backups, and `newest` its largest backup id."""

    name: str
    backups: int
    newest: str | None


@dataclass(frozen=True)
class RepositoryInstances:
    """The instances in a repository, or the error if the instances could not be listed."""

    repository: str
    url: str
    instances: tuple[StoredInstance, ...] = ()
    error: ZsnapdbError | None = None


def list_instances(settings: Settings, host: Host, repository: str | None) -> tuple[RepositoryInstances, ...]:
    """Return the instances in each configured repository or, if a repository is given, only in that one.

    Instances are found by their folders, and no manifest is read. Raises UsageError if the repository is not
    configured.
    """
    if repository is not None and repository not in settings.repository:
        known = ", ".join(sorted(settings.repository))
        raise UsageError(f"repository {repository!r} is not configured", hint=f"known: {known}")
    names = [repository] if repository is not None else sorted(settings.repository)
    return tuple(_read(settings, host, name) for name in names)


def _read(settings: Settings, host: Host, name: str) -> RepositoryInstances:
    configured = settings.repository[name]
    try:
        objects = Repository(*host.open_store(configured, None), "")
        objects.check()
        folders = [folder for folder in objects.top_folders() if re.fullmatch(INSTANCE, folder)]
        ids = {folder: objects.backup_ids(folder) for folder in folders}
        stored = tuple(StoredInstance(name, len(own), own[-1] if own else None) for name, own in ids.items())
    except NotFound as error:
        return RepositoryInstances(name, configured.url, error=nothing_there(name, configured.url, error))
    except ZsnapdbError as error:
        return RepositoryInstances(name, configured.url, error=error)
    if not stored:
        empty = NotFound("it has no instance", hint=_FIRST_BACKUP_HINT)
        return RepositoryInstances(name, configured.url, error=nothing_there(name, configured.url, empty))
    return RepositoryInstances(name, configured.url, stored)


def pin(instance: Instance, backup_id: str, reason: str) -> Pin:
    """Pin a backup (an id or `latest`).

    Afterwards no prune removes the backup or its bases. This host also records the pin, so that the pin is still
    effective if the repository loses it.

    Raises:
        NotFound: the backup does not exist.
    """
    if not reason.strip():
        raise UsageError("a pin needs a reason", hint='give a reason, such as --reason "before the migration"')
    repository = instance.open_repository()
    if backup_id == "latest":
        known = host_backup_record.choosable(instance, repository)
        if not known:
            raise NotFound(f"the repository has no backup of instance {instance.name}", hint=OTHER_ADDRESS_HINT)
        backup_id = known[-1].backup_id
    made = backup_marks.pin(repository, instance.name, backup_id, reason.strip())
    host_backup_record.note_pinned(instance, repository, backup_id)
    return made


def unpin(instance: Instance, backup_id: str) -> Pin:
    """Remove the pin of a backup, on this host and in the repository.

    Raises:
        NotFound: the backup has no pin in either place.
    """
    repository = instance.open_repository()
    if backup_id in host_backup_record.pinned_here(instance, repository):
        removed = backup_marks.pins(repository, instance.name).get(backup_id) or Pin(
            backup_id, "(the pin was hidden)", ""
        )
        repository.delete(layout.pin(instance.name, backup_id))
        host_backup_record.note_unpinned(instance, repository, backup_id)
        return removed
    return backup_marks.unpin(repository, instance.name, backup_id)
