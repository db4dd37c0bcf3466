"""The planned steps that bring the volumes of a backup to this host and let their server recover."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zsnapdb.base.model import pool_of
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.restore import raw_keys
from zsnapdb.planning.dataset_properties import data_values
from zsnapdb.planning.restore.origin import OriginChoice
from zsnapdb.planning.restore.plan import RestoreLayout
from zsnapdb.planning.restore.steps import (
    CloneSnapshot,
    MakeTop,
    MountPart,
    MountVolumes,
    Preflight,
    Receive,
    Recover,
    Step,
)
from zsnapdb.repository.manifest import Manifest, server_source


def receiving(
    instance: Instance, chain: Sequence[Manifest], layout: RestoreLayout, binlogs: int, origin: OriginChoice
) -> list[Step]:
    """Return the steps up to the volumes of the last backup of the chain, unmounted; the first changes nothing.

    `binlogs`: the bytes of binlogs that are replayed later, for which there must be room.
    """
    volumes = [
        (manifest, volume)
        for manifest in chain
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]
    facts = server_source(chain[-1]).server
    features = 0
    for _, volume in volumes:
        features |= volume.features
    # A clone shares every block with its snapshot.
    received, fetched = (
        (0, 0)
        if origin.snapshots
        else (sum(manifest.plain_size for manifest in chain), sum(manifest.stored_size for manifest in chain))
    )
    steps: list[Step] = [
        Preflight(
            pool=pool_of(layout.top),
            parent=layout.top.rpartition("/")[0],
            # Each replayed transaction needs space three times: in a relay log, in a binlog, and in the tables.
            plain_bytes=received + 3 * binlogs,
            stored_bytes=fetched + binlogs,
            features=0 if origin.snapshots else features,
            zfs_version=chain[-1].zfs_version,
            flavour=facts.flavour,
            server_version=facts.version,
            backups=tuple(manifest.backup_id for manifest in chain),
            fetches=not origin.snapshots,
            encrypted=() if origin.snapshots else chain[-1].encrypted,
            raw=() if origin.snapshots else chain[-1].raw,
        )
    ]
    if layout.top not in layout.datasets.values():
        steps.append(MakeTop(layout.top))
    if origin.snapshots:
        return [*steps, *_cloning(chain[-1], layout, origin)]
    for manifest, volume in volumes:
        steps.append(
            Receive(
                backup_id=manifest.backup_id,
                role=volume.role,
                dataset=layout.datasets[volume.role],
                mountpoint=layout.mountpoints[volume.role],
                snapshot=volume.snapshot,
                guid=volume.guid,
                from_guid=volume.from_guid,
                plain_bytes=volume.plain_size,
                stored_bytes=volume.stored_size,
                key_location=raw_keys.key_location(instance) if volume.is_raw else None,
            )
        )
    return steps


def _cloning(manifest: Manifest, layout: RestoreLayout, origin: OriginChoice) -> list[CloneSnapshot]:
    return [
        CloneSnapshot(
            backup_id=manifest.backup_id,
            role=volume.role,
            dataset=layout.datasets[volume.role],
            mountpoint=layout.mountpoints[volume.role],
            origin=origin.snapshots[volume.role],
            snapshot=volume.snapshot,
            guid=volume.guid,
        )
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]


def recovering(manifest: Manifest, layout: RestoreLayout, unknown: Collection[str] = ()) -> list[Step]:
    """Return the steps that mount the volumes and let their server recover to the position of the backup.

    `unknown` are properties that this host has not.
    """
    parts = [
        MountPart(
            role=volume.role,
            dataset=layout.datasets[volume.role],
            mountpoint=layout.mountpoints[volume.role],
            snapshot=volume.snapshot,
            guid=volume.guid,
            properties=data_values(volume.filesystem.properties, unknown=unknown),
        )
        for volume in sorted(manifest.volumes, key=lambda v: len(layout.datasets[v.role]))
    ]
    position = server_source(manifest).position
    return [MountVolumes(tuple(parts)), Recover(position.gtids, position.binlog_file, position.binlog_offset)]
