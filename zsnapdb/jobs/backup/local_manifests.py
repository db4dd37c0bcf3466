"""What a restore from this host needs to know about a snapshot set: a manifest without chunks, on this host.

Of a set that is in no repository it is written after the set is proved, of a backup after the backup is stored, for the
time when the store is away. It goes with the set. Without a manifest that can be read, a local set starts no restore.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from zsnapdb import __version__
from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.model import SnapshotSet, is_backup_id, pool_of
from zsnapdb.jobs.backup.source import SourceDescription
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.record.record_file import BACKUPS
from zsnapdb.jobs.record.record_file import read as record_file
from zsnapdb.planning import order
from zsnapdb.planning.repository.host_record import BackupRecord
from zsnapdb.repository.manifest import Manifest, VolumePart, decode
from zsnapdb.stream.chunks import Codec
from zsnapdb.zfs import datasets, snapshots, version

IN_NO_REPOSITORY = "local"
"""The repository id of such a manifest."""


def folder(instance: Instance) -> Path:
    """Return where this host keeps the manifests of local sets of the instance."""
    return instance.host.local_sets / instance.name


def write(instance: Instance, described: SourceDescription, made: SnapshotSet, created: datetime) -> None:
    """Write the manifest of a local set. Afterwards a restore can begin with the set. Warns if it cannot be written."""
    manifest = Manifest(
        backup_id=made.backup_id,
        instance=instance.name,
        repository_id=IN_NO_REPOSITORY,
        created=created,
        tool_version=__version__,
        run_id=instance.host.run_id(),
        zfs_version=version.userland(),
        pool_guid=version.pool_guid(pool_of(next(iter(made.snapshots.values())).dataset)),
        createtxg=made.createtxg,
        sequence=_next_number(instance),
        source=described.source,
        volumes=tuple(
            VolumePart(
                role=role,
                dataset=snapshot.dataset,
                snapshot=snapshot.name,
                guid=snapshot.guid,
                from_guid=None,
                send_flags=(),
                features=0,
                type=described.volumes[role],
                codec=Codec.NONE,
                plain_size=0,
                sha256="0" * 64,
                chunks=(),
            )
            for role, snapshot in sorted(made.snapshots.items())
        ),
    )
    _write(instance, manifest)


def _next_number(instance: Instance) -> int:
    """Return the number after those that this host gave documents of the instance, as far as its records can be read.

    It places the set after backups of another pool. Within the pool ZFS orders them.
    """
    numbers: list[int] = []
    for file in (instance.host.records / instance.name).glob(f"*/{BACKUPS}"):
        with contextlib.suppress(DamagedError):
            record = record_file(file, BackupRecord)
            if record is not None and record.url == instance.repository.url:
                numbers += [one for one in (record.sequence, *(b.sequence for b in record.stored)) if one is not None]
    return order.next_number(max(numbers, default=0), ())


def keep(instance: Instance, manifest: Manifest) -> None:
    """Write what a restore from this host needs to know of a stored backup, should the store be away then."""
    volumes = tuple(
        volume.model_copy(update={"from_guid": None, "plain_size": 0, "sha256": "0" * 64, "chunks": ()})
        for volume in manifest.volumes
    )
    changes = {"repository_id": IN_NO_REPOSITORY, "keys": (), "volumes": volumes}
    _write(instance, manifest.model_copy(update=changes))


def _write(instance: Instance, manifest: Manifest) -> None:
    try:
        make_private(folder(instance))
        # A file that is written half, because the host died, is no manifest, and its set starts no restore.
        (folder(instance) / manifest.backup_id).write_bytes(manifest.encode())
    except (OSError, PreflightError) as error:
        instance.events.warn(
            f"the description of local set {manifest.backup_id} cannot be written to {folder(instance)} ({error}): no"
            " restore can begin with the set"
        )


def remove(instance: Instance, backup_id: str) -> None:
    """Remove the manifest of a local set, if there is one."""
    with contextlib.suppress(OSError):
        (folder(instance) / backup_id).unlink(missing_ok=True)


def names(instance: Instance) -> list[str]:
    """Return the ids of the sets that have a manifest on this host."""
    try:
        return sorted(path.name for path in folder(instance).iterdir() if is_backup_id(path.name))
    except OSError:
        return []


def remove_stale(instance: Instance, known: Collection[str], here: Collection[str]) -> None:
    """Remove the manifests of sets of which nothing is left.

    `known` are the `names` as they were before the snapshots were listed: a set that was made since has its manifest
    and is not among those that were seen. `here` are the ids of the sets with a snapshot on the instance's volumes. A
    set may lie on volumes that were the instance's before.
    """
    for backup_id in known:
        if backup_id in here:
            continue
        manifest = read(instance, backup_id)
        there = () if manifest is None else [f"{one.dataset}@{one.snapshot}" for one in manifest.volumes]
        if not any(datasets.exists(name) for name in there):
            remove(instance, backup_id)


def read(instance: Instance, backup_id: str) -> Manifest | None:
    """Return the manifest of a local set; None if there is none that can be read."""
    if not is_backup_id(backup_id):
        return None
    try:
        manifest = decode((folder(instance) / backup_id).read_bytes(), f"of local set {backup_id}")
    except (OSError, DamagedError):
        return None
    is_its = (manifest.backup_id, manifest.instance, manifest.repository_id)
    return manifest if is_its == (backup_id, instance.name, IN_NO_REPOSITORY) else None


def _renamed(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the present names of datasets that were renamed, or whose pool was imported under another name.

    Copies have snapshots with the same GUIDs, but only the originals were made in that transaction group.
    """
    if not manifests:
        return {}
    # Few commands need it.
    from zsnapdb.jobs.host.replaced import REPLACED_PROPERTY

    wanted = {one.guid: (one.dataset, manifest.createtxg) for manifest in manifests for one in manifest.volumes}
    own = {manifest.pool_guid for manifest in manifests}
    names = [
        name
        for pool in datasets.pools()
        if version.pool_guid(pool) in own
        for name, values in datasets.children(pool, [REPLACED_PROPERTY]).items()
        if values[REPLACED_PROPERTY].value == datasets.UNSET
    ]
    points = snapshots.send_points(names).values()
    there = [name for one in points for guid, name in one.snapshots.items() if guid in wanted]
    found = snapshots.describe(there) if there else []
    return {wanted[one.guid][0]: one.dataset for one in found if one.createtxg == wanted[one.guid][1]}


def _renamed_in(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    volumes = tuple(
        volume.model_copy(update={"dataset": names.get(volume.dataset, volume.dataset)}) for volume in manifest.volumes
    )
    return manifest.model_copy(update={"volumes": volumes})


def load(instance: Instance) -> list[Manifest]:
    """Return the manifests of the sets whose snapshots are all here, oldest first."""
    manifests = [manifest for name in names(instance) if (manifest := read(instance, name)) is not None]
    here = snapshots.send_points_there({volume.dataset for manifest in manifests for volume in manifest.volumes})
    lost = [one for one in manifests if any(volume.dataset not in here for volume in one.volumes)]
    if renamed := _renamed(lost):
        manifests = [_renamed_in(manifest, renamed) for manifest in manifests]
        here = snapshots.send_points_there({volume.dataset for manifest in manifests for volume in manifest.volumes})
    return order.in_order(
        manifest
        for manifest in manifests
        if all(
            volume.dataset in here
            and here[volume.dataset].snapshots.get(volume.guid) == f"{volume.dataset}@{volume.snapshot}"
            for volume in manifest.volumes
        )
    )
