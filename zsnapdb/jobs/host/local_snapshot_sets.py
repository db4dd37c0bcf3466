"""The snapshot sets of an instance that exist on this host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import SetsHere, own_snapshots
from zsnapdb.jobs.base.snapshot_set_properties import BACKUP_PROPERTY, LOCAL, STATE_PROPERTY, STORED, TAKEN
from zsnapdb.planning import creation_order
from zsnapdb.zfs import datasets
from zsnapdb.zfs.snapshots import OwnedSnapshot


def as_backed_up_last(instance: Instance) -> Instance | None:
    """Return the instance with the volumes that its newest backup records; None if there is no backup.

    Callers need this if the server is down and no volumes are configured. Raises RepositoryError if the repository is
    unreachable.
    """
    # Import late, because commands that read only this host need no repository modules.
    from zsnapdb.jobs.record import host_backup_record

    repository = instance.open_repository()
    known = host_backup_record.choosable(instance, repository)
    return instance.with_volumes({volume.role: volume.dataset for volume in known[-1].volumes}) if known else None


def local_sets(instance: Instance, *states: str) -> list[SnapshotSet]:
    """Return the complete snapshot sets of the instance on this host in the order of creation in ZFS, oldest first.

    A set is complete if it has a snapshot of every volume, and one transaction group created all these snapshots. Only
    sets in one of the given states are returned. By default, these are the sets whose backups are stored.
    """
    return [one.set for one in described_sets(instance, *states)]


@dataclass(frozen=True)
class DescribedSet:
    """A complete set with its state, and the properties of its first snapshot.

    If the snapshots of the set have different states, the state of the set is TAKEN.
    """

    set: SnapshotSet
    state: str
    properties: Mapping[str, str]


def described_sets(
    instance: Instance, *states: str, more: Sequence[str] = (), only: str | None = None
) -> list[DescribedSet]:
    """Return the sets that `local_sets` returns, each with the additional properties `more`.

    If `only` is an id, only the set with this id is read. This is fast even if there are many sets.
    """
    places, asked = set(instance.volumes.values()), states or (STORED,)
    return sets_among(instance, own_snapshots(instance, places, more, only=only, states=asked), *asked)


def newest_set(instance: Instance, *states: str) -> DescribedSet | None:
    """Return the newest of the sets that `local_sets` returns; None if there is none.

    The newest sets are read first, so that as few sets as possible are read.
    """
    for part in SetsHere.look(instance, set(instance.volumes.values())).newest_first(states):
        found = sets_among(instance, part, *states)
        if found:
            return found[-1]
    return None


def require_whole(
    instance: Instance, made: SnapshotSet | int, *, accepts_older: bool = False, is_received: bool = False
) -> None:
    """Raise PreflightError if a newer set is unusable because another program changed its snapshots.

    The argument `made` identifies the state to use. It is a set on this host, or the transaction group in which a
    stored backup was created. If there is a newer unusable set, `made` is not the latest state. If `accepts_older` is
    set, this function only warns. If `is_received` is set, `made` is the transaction group in which production received
    the backup. Each volume received newer sets in other transaction groups.
    """
    places = [name for name in instance.volumes.values() if datasets.exists(name)]
    if not places:
        return
    here, group = SetsHere.look(instance, places), made if isinstance(made, int) else made.createtxg
    torn = here.torn_after(group, (STORED, LOCAL), len(instance.volumes) + is_received)
    # Received snapshots of a restore have no properties either, but they are only on datasets without an older set.
    changed = here.changed_after(group) if not torn and (is_received or not isinstance(made, int)) else []
    if not torn and not changed:
        return
    left = ", ".join(one.snapshot.full_name for one in torn or changed)
    how = "left only" if torn else "changed the names or zsnapdb's properties of"
    how = ("received" if torn else f"received, or {how}") if is_received else how
    message = f"a newer snapshot set of {instance.name} is incomplete: another program {how} {left}"
    if accepts_older:
        instance.events.warn(f"{message}; an older state is used")
        return
    raise PreflightError(
        message,
        hint=("" if is_received else "give the renamed snapshots or datasets their names again, or ")
        + f"run `zsnapdb snapshot {instance.name}`; commands with --accept-older use the older state",
    )


def sets_among(instance: Instance, seen: Iterable[OwnedSnapshot], *states: str) -> list[DescribedSet]:
    """Return the sets that the given snapshots of the instance's volumes form. The conditions of `local_sets` apply."""
    sets = []
    for backup_id, members in _members(instance, seen, states or (STORED,)).items():
        if set(members) == set(instance.volumes) and len({one.snapshot.createtxg for one in members.values()}) == 1:
            found = {one.properties[STATE_PROPERTY] for one in members.values()}
            made = SnapshotSet(backup_id, {role: one.snapshot for role, one in members.items()})
            facts = next(iter(members.values())).properties
            sets.append(DescribedSet(made, found.pop() if len(found) == 1 else TAKEN, facts))
    return creation_order.by_creation(sets, lambda one: one.set.createtxg)


def unfinished(seen: Iterable[OwnedSnapshot]) -> dict[str, list[str]]:
    """Return the snapshots that belong to interrupted or running backups of the instance, by backup id."""
    by_id: dict[str, list[str]] = {}
    for marked in seen:
        if marked.properties[STATE_PROPERTY] == TAKEN:
            by_id.setdefault(marked.properties[BACKUP_PROPERTY], []).append(marked.snapshot.full_name)
    return dict(sorted(by_id.items()))


def _members(
    instance: Instance, seen: Iterable[OwnedSnapshot], states: Collection[str]
) -> dict[str, dict[str, OwnedSnapshot]]:
    by_id: dict[str, dict[str, OwnedSnapshot]] = {}
    roles = {dataset: role for role, dataset in instance.volumes.items()}
    for marked in seen:
        if marked.properties[STATE_PROPERTY] in states:
            by_id.setdefault(marked.properties[BACKUP_PROPERTY], {})[roles[marked.snapshot.dataset]] = marked
    return by_id
