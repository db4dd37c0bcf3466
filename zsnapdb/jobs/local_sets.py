"""The snapshot sets of an instance that are still on this host."""

from __future__ import annotations

from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.set_properties import BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY, STORED, TAKEN, snapshot_name
from zsnapdb.model import Snapshot, SnapshotSet, is_backup_id
from zsnapdb.zfs import snapshots


def local_sets(instance: Instance, *states: str) -> list[SnapshotSet]:
    """Return the instance's whole snapshot sets on this host, oldest first.

    A set counts if it is in one of the states (its backup was stored, if none is named), every volume has its member,
    and all are of one transaction group.
    """
    whole = []
    members_by_id = {
        backup_id: members for state in states or (STORED,) for backup_id, members in _members(instance, state).items()
    }
    for backup_id, members in sorted(members_by_id.items()):
        if set(members) == set(instance.volumes) and len({s.createtxg for s in members.values()}) == 1:
            whole.append(SnapshotSet(backup_id, members))
    return whole


def unfinished(instance: Instance) -> dict[str, list[str]]:
    """Return the snapshots, by backup id, that an interrupted backup left behind (or a running one is working on)."""
    return {
        backup_id: [s.full_name for s in members.values()]
        for backup_id, members in sorted(_members(instance, TAKEN).items())
    }


def _members(instance: Instance, state: str) -> dict[str, dict[str, Snapshot]]:
    """Return the instance's own snapshots in that state: by backup id and role."""
    by_id: dict[str, dict[str, Snapshot]] = {}
    for role, dataset in instance.volumes.items():
        for owned in snapshots.owned(dataset, [BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY]):
            found = owned.properties
            # The name must fit too: snapshots inherit the properties of their dataset, and a restored one carries some
            # of these.
            is_own = owned.snapshot.name == snapshot_name(found[BACKUP_PROPERTY]) and is_backup_id(
                found[BACKUP_PROPERTY]
            )
            if is_own and (found[INSTANCE_PROPERTY], found[STATE_PROPERTY]) == (instance.name, state):
                by_id.setdefault(found[BACKUP_PROPERTY], {})[role] = owned.snapshot
    return by_id
