"""The snapshot sets of an instance that are still on this host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.model import SnapshotSet
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.own_snapshots import SetsHere, own_snapshots
from zsnapdb.jobs.base.set_properties import BACKUP_PROPERTY, STATE_PROPERTY, STORED, TAKEN
from zsnapdb.planning import order
from zsnapdb.zfs.snapshots import OwnedSnapshot


def as_backed_up_last(instance: Instance) -> Instance | None:
    """Return the instance with the volumes of its newest backup; None if there is none.

    For when no volumes are configured and the server, which knows them, is down. RepositoryError if the repository
    cannot be reached.
    """
    # What only looks at the host does without the modules of repositories.
    from zsnapdb.jobs.record import host_record

    repository = instance.open_repository()
    known = host_record.choosable(instance, repository)
    return instance.with_volumes({volume.role: volume.dataset for volume in known[-1].volumes}) if known else None


def local_sets(instance: Instance, *states: str) -> list[SnapshotSet]:
    """Return the complete snapshot sets of the instance on this host, as ZFS made them, oldest first.

    A set is complete if every volume has its snapshot and all snapshots are of one transaction group. Only sets in one
    of the states are returned (default: sets whose backup is stored).
    """
    return [one.set for one in described_sets(instance, *states)]


@dataclass(frozen=True)
class DescribedSet:
    """A complete set: its state (that of all its snapshots, else TAKEN), and the properties of its first snapshot."""

    set: SnapshotSet
    state: str
    properties: Mapping[str, str]


def described_sets(
    instance: Instance, *states: str, more: Sequence[str] = (), only: str | None = None
) -> list[DescribedSet]:
    """Return the sets that `local_sets` returns, with the properties `more` of each.

    `only`: no other set than that of this id is looked at, however many there are (None: all).
    """
    places, asked = set(instance.volumes.values()), states or (STORED,)
    return sets_among(instance, own_snapshots(instance, places, more, only=only, states=asked), *asked)


def newest_set(instance: Instance, *states: str) -> DescribedSet | None:
    """Return the newest of the sets that `local_sets` returns; None if there is none.

    Few others are read for it: it is the one that ZFS made last of the few whose ids are the newest.
    """
    for part in SetsHere.look(instance, set(instance.volumes.values())).newest_first(states):
        found = sets_among(instance, part, *states)
        if found:
            return found[-1]
    return None


def sets_among(instance: Instance, seen: Iterable[OwnedSnapshot], *states: str) -> list[DescribedSet]:
    """Return the sets that `local_sets` returns, of these own snapshots of the instance's volumes."""
    sets = []
    for backup_id, members in _members(instance, seen, states or (STORED,)).items():
        if set(members) == set(instance.volumes) and len({one.snapshot.createtxg for one in members.values()}) == 1:
            found = {one.properties[STATE_PROPERTY] for one in members.values()}
            made = SnapshotSet(backup_id, {role: one.snapshot for role, one in members.items()})
            facts = next(iter(members.values())).properties
            sets.append(DescribedSet(made, found.pop() if len(found) == 1 else TAKEN, facts))
    return order.by_creation(sets, lambda one: one.set.createtxg)


def unfinished(seen: Iterable[OwnedSnapshot]) -> dict[str, list[str]]:
    """Return the snapshots of interrupted and running backups among the own ones of the instance, by backup id."""
    by_id: dict[str, list[str]] = {}
    for marked in seen:
        if marked.properties[STATE_PROPERTY] == TAKEN:
            by_id.setdefault(marked.properties[BACKUP_PROPERTY], []).append(marked.snapshot.full_name)
    return dict(sorted(by_id.items()))


def _members(
    instance: Instance, seen: Iterable[OwnedSnapshot], states: Collection[str]
) -> dict[str, dict[str, OwnedSnapshot]]:
    """Return those of the snapshots that are in one of the states, by backup id and role."""
    by_id: dict[str, dict[str, OwnedSnapshot]] = {}
    roles = {dataset: role for role, dataset in instance.volumes.items()}
    for marked in seen:
        if marked.properties[STATE_PROPERTY] in states:
            by_id.setdefault(marked.properties[BACKUP_PROPERTY], {})[roles[marked.snapshot.dataset]] = marked
    return by_id
