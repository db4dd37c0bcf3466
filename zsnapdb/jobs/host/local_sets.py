"""The snapshot sets of an instance that are still on this host."""

from __future__ import annotations

from collections.abc import Collection

from zsnapdb.base.model import Snapshot, SnapshotSet, is_backup_id
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    STATE_PROPERTY,
    STORED,
    TAKEN,
    snapshot_name,
)
from zsnapdb.jobs.record import host_record
from zsnapdb.zfs import snapshots


def as_backed_up_last(instance: Instance) -> Instance | None:
    """Return the instance with the volumes of its newest backup; None if there is none.

    For when no volumes are configured and the server, which knows them, is down. RepositoryError if the repository
    cannot be reached.
    """
    repository = instance.open_repository()
    known = host_record.without_future(instance, repository, instance.summaries(repository))
    return instance.with_volumes({volume.role: volume.dataset for volume in known[-1].volumes}) if known else None


def local_sets(instance: Instance, *states: str) -> list[SnapshotSet]:
    """Return the complete snapshot sets of the instance on this host, oldest first.

    A set is complete if every volume has its snapshot and all snapshots are of one transaction group. Only sets in one
    of the states are returned (default: sets whose backup is stored).
    """
    return [
        SnapshotSet(backup_id, members)
        for backup_id, members in sorted(_members(instance, states or (STORED,)).items())
        if set(members) == set(instance.volumes) and len({s.createtxg for s in members.values()}) == 1
    ]


def unfinished(instance: Instance) -> dict[str, list[str]]:
    """Return the snapshots of interrupted and running backups, by backup id."""
    return {
        backup_id: [s.full_name for s in members.values()]
        for backup_id, members in sorted(_members(instance, (TAKEN,)).items())
    }


def _members(instance: Instance, states: Collection[str]) -> dict[str, dict[str, Snapshot]]:
    """Return the instance's own snapshots in one of the states, by backup id and role. One command reads them."""
    by_id: dict[str, dict[str, Snapshot]] = {}
    roles = {dataset: role for role, dataset in instance.volumes.items()}
    for owned in snapshots.owned(roles, [BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY]):
        marks = owned.properties
        backup_id = marks[BACKUP_PROPERTY]
        # The properties alone prove nothing: snapshots inherit the properties of their dataset, and a restored
        # dataset has some of these. So the name must fit too.
        is_own = owned.snapshot.name == snapshot_name(backup_id) and is_backup_id(backup_id)
        if is_own and marks[INSTANCE_PROPERTY] == instance.name and marks[STATE_PROPERTY] in states:
            by_id.setdefault(backup_id, {})[roles[owned.snapshot.dataset]] = owned.snapshot
    return by_id
