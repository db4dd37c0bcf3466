"""Reads which snapshots and bookmarks the backups of an instance left on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.model import SNAPSHOT_PREFIX, is_backup_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.own_snapshots import own_snapshots
from zsnapdb.jobs.base.set_properties import (
    BACKUP_PROPERTY,
    REPOSITORY_PROPERTY,
    STORED,
    snapshot_name,
)
from zsnapdb.planning.repository.local_sets import LocalBookmark, LocalSnapshot
from zsnapdb.repository.catalogue import Summary
from zsnapdb.zfs import datasets, snapshots


@dataclass(frozen=True)
class LocalLeftovers:
    """Snapshots and bookmarks of an instance's backups on this host. `guids` are the possible bases per role."""

    snapshots: tuple[LocalSnapshot, ...]
    bookmarks: tuple[LocalBookmark, ...]
    guids: Mapping[str, frozenset[int]]


NOTHING_LOCAL = LocalLeftovers((), (), {})
"""For a host without the instance, and for a repository that is not the instance's own one."""


def look_locally(instance: Instance, backups: Sequence[Summary]) -> LocalLeftovers:
    """Return the snapshots and bookmarks that backups of the instance left on this host.

    If no volumes are configured, use the volumes of the newest backup.
    """
    if instance.settings.volumes is None and backups:
        instance = instance.with_volumes({volume.role: volume.dataset for volume in backups[-1].volumes})
    if instance.settings.volumes is None or not all(datasets.exists(dataset) for dataset in instance.volumes.values()):
        return NOTHING_LOCAL
    kept, own_bookmarks, guids = [], [], {}
    volumes = list(instance.volumes.values())
    for marked in own_snapshots(instance, volumes, (REPOSITORY_PROPERTY, *snapshots.USES), states=(STORED,)):
        snapshot, marks = marked.snapshot, marked.properties
        kept.append(
            LocalSnapshot(
                snapshot.full_name,
                marks[BACKUP_PROPERTY],
                snapshot.guid,
                marks[REPOSITORY_PROPERTY].replace(datasets.UNSET, ""),
                marked.use.holds,
                marked.use.clones,
                marked.use.used,
                snapshot.createtxg,
            )
        )
    points = snapshots.send_points(volumes)
    for role, dataset in instance.volumes.items():
        for guid, name in points[dataset].bookmarks.items():
            backup_id = name.partition("#")[2].removeprefix(SNAPSHOT_PREFIX)
            if is_backup_id(backup_id) and name == f"{dataset}#{snapshot_name(backup_id)}":
                own_bookmarks.append(LocalBookmark(name, backup_id, guid))
        guids[role] = frozenset(points[dataset].names)
    return LocalLeftovers(tuple(kept), tuple(own_bookmarks), guids)
