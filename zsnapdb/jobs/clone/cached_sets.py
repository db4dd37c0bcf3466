"""Snapshot sets that this host keeps so that later clones start fast: received and prepared sets.

A received set comes from the repository, or from a replay up to a point. A prepared set is a copy on which a server
recovered once and was shut down cleanly. The copy is masked if clones of the instance are masked. Each set has an
anchor: a dataset without files, whose local ZFS properties contain all records of the set. The copy is the dataset `c`
below the anchor. An anchor in phase `making` is a leftover if the process that created it no longer runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from zsnapdb.base.domain_types import Snapshot, SnapshotSet, is_backup_id, pool_of
from zsnapdb.base.errors import BusyError, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.base.snapshot_set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    RESTORED_PROPERTY,
    snapshot_name,
)
from zsnapdb.jobs.clone import catalogue, clone_info, expected_clone, locks
from zsnapdb.jobs.clone.catalogue import ROOT, homes
from zsnapdb.jobs.clone.clone_info import BEGUN_PROPERTY, KEPT_PROPERTY, CloneClaim, CloneInfo
from zsnapdb.jobs.clone.sources import CloneSource, begun_of, commits, key_of
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets, KnownCopies
from zsnapdb.jobs.dataset_copies.properties import CopyPhase, settle_lease
from zsnapdb.jobs.dataset_copies.property_fields import CREATED, ORIGIN, PHASE, choice, own_text, stored_field, text
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning import creation_order
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.lease import (
    FOREVER,
    CloneLease,
    SourceKind,
    end_of_age,
    read_stamp,
    require_within_age,
    stamp,
)
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.zfs import datasets, destruction, snapshots, version
from zsnapdb.zfs.destruction import Mark

_CREATED = copy_properties.CREATED_PROPERTY
RECEIVED = "received"
PREPARED = "prepared"


@dataclass(frozen=True, kw_only=True)
class SetRecord:
    """The record on the anchor of a received or prepared set.

    `name` is the name of the anchor. `set_id` is the id of the set whose data was copied. `rules` is the digest of the
    rules that masked the data, or "" if it is not masked. `used` is the time when the set was last cloned. `point` is
    the identity of the point that a replay reached, or `-` if the set comes from no replay. `key` is the identity of
    the data from which a prepared set was created, or "" if it is not recorded. `caused_by` is the subject for whom the
    set was received, or "" for an administrator.
    """

    name: str
    anchor: str
    source: SourceKind = field(metadata=stored_field(choice(clone_info.SOURCE_PROPERTY, SourceKind)))
    set_id: str = field(metadata=stored_field(text(BACKUP_PROPERTY)))
    instance: str = field(metadata=stored_field(text(INSTANCE_PROPERTY)))
    origin: SourceServer = field(metadata=stored_field(ORIGIN))
    phase: CopyPhase = field(metadata=stored_field(PHASE))
    created: str = field(metadata=stored_field(CREATED))
    used: str = field(metadata=stored_field(text(clone_info.USED_PROPERTY)))
    rules: str = field(default="", metadata=stored_field(own_text(clone_info.RULES_PROPERTY)))
    point: str = field(default="", metadata=stored_field(text(clone_info.POINT_PROPERTY)))
    key: str = field(default="", metadata=stored_field(own_text(clone_info.KEY_PROPERTY)))
    caused_by: str = field(default="", metadata=stored_field(own_text(clone_info.CAUSER_PROPERTY)))


_COLUMNS = (*property_fields.columns(SetRecord), clone_info.ROLE_PROPERTY, "used", "reservation", "mountpoint")


@dataclass(frozen=True, kw_only=True)
class ReusableSet(SetRecord):
    """A received or prepared set: its datasets, its volumes by role, and the datasets that were cloned from it.

    `most_bytes` is the larger of the set's size and its space reservation.
    """

    kind: str
    members: tuple[str, ...]
    volumes: Mapping[str, str]
    clones: tuple[str, ...]
    own_bytes: int
    most_bytes: int

    @property
    def is_of_nobody(self) -> bool:
        """Whether the set was received for a subject and no longer has clones."""
        return bool(self.caused_by) and self.phase is CopyPhase.READY and not self.clones

    @property
    def lock(self) -> str:
        """The name of the lock for creating or removing the set."""
        return locks.name_of_reusable_set(self.kind, self.name)


def _beside(home: str, kind: str) -> str:
    """Return the parent dataset of all sets of this kind. It is a sibling of the dataset that contains the clones."""
    return f"{home.rpartition('/')[0]}/{kind}"


def anchor_of(home: str, kind: str, name: str) -> str:
    """Return the name of the anchor dataset of the set with the given name."""
    return f"{_beside(home, kind)}/{name}"


def name_of(source: CloneSource, rules: str) -> str:
    """Return the name of a source's prepared set.

    `rules` is the digest of the rules that masked the set, or "" if it is unmasked. Snapshot sets of different
    instances or times can have the same id, so the name also contains the source's key.
    """
    return "-".join((source.set.backup_id, source.key[:8], *([rules[:8]] if rules else [])))


def received_name(set_id: str, guids: Mapping[str, int]) -> str:
    """Return the name of the received set of a backup. `guids` are the GUIDs of its snapshots by role.

    Backups of two instances can have the same id, so the name depends on the GUIDs too.
    """
    return f"{set_id}-{key_of(guids)[:8]}"


def known_sets(settings: Settings, kind: str) -> KnownCopies[ReusableSet]:
    """Return the received or prepared sets on this host."""
    return _read_sets(kind, [_beside(home, kind) for home in homes(settings)])


def listing(settings: Settings) -> list[ReusableSet]:
    """Return the received and prepared sets on this host whose properties can be read."""
    return [item for kind in (RECEIVED, PREPARED) for item in known_sets(settings, kind).copies]


def _read_sets(kind: str, above: Sequence[str]) -> KnownCopies[ReusableSet]:
    existing = [dataset for dataset in above if datasets.exists(dataset)]
    clones = {
        snapshot: values["clones"].value
        for dataset in existing
        for snapshot, values in snapshots.below(dataset, ("clones",)).items()
    }
    return copies.known_copies(
        f"{kind} set", existing, _COLUMNS, KEPT_PROPERTY, partial(_set, kind, clones), is_named=False
    )


def _set(kind: str, dependents: Mapping[Snapshot, str], found: CopyDatasets) -> ReusableSet:
    clones = {
        name
        for snapshot, names in dependents.items()
        if snapshot.dataset in found.members
        for name in copies.dependents(names)
    }
    roles = {dataset: values[clone_info.ROLE_PROPERTY] for dataset, values in found.members.items()}
    return ReusableSet(
        kind=kind,
        name=found.name,
        anchor=found.anchor,
        members=tuple(found.members),
        volumes={role.value: dataset for dataset, role in roles.items() if role.is_local},
        clones=tuple(sorted(clones)),
        own_bytes=found.number("used"),
        most_bytes=max(found.number("used"), found.number("reservation")),
        **property_fields.read(SetRecord, found),
    )


def find(home: str, kind: str, name: str) -> ReusableSet | None:
    """Return the received or prepared set with the given name, complete or not; None if it does not exist.

    Raises:
        DamagedError: the properties of the set cannot be read.
    """
    if not datasets.exists(anchor_of(home, kind, name)):
        return None
    return copies.find_or_none(_read_sets(kind, [_beside(home, kind)]), name)


def prepared_commits(home: str, commits: Collection[str]) -> list[ReusableSet]:
    """Return all prepared sets whose data comes from one of the given commits, masked or not, complete or not."""
    prepared = _read_sets(PREPARED, [_beside(home, PREPARED)]).copies
    return [item for item in prepared if item.source is SourceKind.COMMIT and item.set_id in commits]


def _source_of(stored: ReusableSet, kind: SourceKind, *, is_prepared: bool) -> CloneSource:
    names = {role: f"{dataset}@{snapshot_name(stored.set_id)}" for role, dataset in stored.volumes.items()}
    described = dict(zip(names, snapshots.describe(list(names.values())), strict=True))
    made = SnapshotSet(stored.set_id, described)
    return CloneSource(kind, made, stored.origin, is_prepared, stored.rules, prepared_of=stored.key)


def find_received(home: str, set_id: str, guids: Mapping[str, int]) -> CloneSource | None:
    """Return the received set whose snapshots have the given GUIDs (by role); None if there is no such set."""
    # In earlier versions, the name of a received set contained only its id.
    for name in (received_name(set_id, guids), set_id):
        stored = find(home, RECEIVED, name)
        if stored is not None and stored.phase is CopyPhase.READY and stored.source is not SourceKind.POINT:
            source = _source_of(stored, stored.source, is_prepared=False)
            if source.guids == guids:
                return source
    return None


def find_ready_point(home: str, set_id: str) -> CloneSource | None:
    """Return the complete set with the given id that a replay created in this home of clones; None if there is none.

    The dataset `home` need not exist.
    """
    stored = find(home, RECEIVED, set_id)
    return _point_source(_points([stored], stored.instance, lambda _: True)) if stored is not None else None


def find_point(settings: Settings, instance: Instance, set_id: str) -> CloneSource | None:
    """Return the set with the given id that a replay created for a clone; None if there is none.

    No repository contains such a set. If several pools have the set, for example after a split, the set in production's
    pool is returned.

    Raises:
        PreflightError: several pools have the set, and none or several of them are production's.
    """
    points = _points(known_sets(settings, RECEIVED).copies, instance.name, lambda one: one.set_id == set_id)
    if len(points) > 1:
        production = {pool_of(name) for name in (instance.settings.volumes or {}).values()}
        own = [one for one in points if pool_of(one.anchor) in production]
        if len(own) != 1:
            raise PreflightError(
                f"several pools have the set {set_id}: {', '.join(one.anchor for one in points)}",
                hint=f"export the pool with the copy, or set `volumes` of {instance.name} or clones.dataset",
            )
        points = own
    return _point_source(points)


def find_reached(home: str, instance: str, identity: str) -> CloneSource | None:
    """Return the set from a replay to exactly this point (`RestorePlan.point_identity`); None if there is none.

    Sets in other homes of clones are ignored, because their clones would be in another pool.
    """
    sets = _read_sets(RECEIVED, [_beside(home, RECEIVED)]).copies
    return _point_source(_points(sets, instance, lambda one: one.point == identity))


def _points(sets: Iterable[ReusableSet], instance: str, is_wanted: Callable[[ReusableSet], bool]) -> list[ReusableSet]:
    wanted = (instance, SourceKind.POINT, CopyPhase.READY)
    return [one for one in sets if (one.instance, one.source, one.phase) == wanted and is_wanted(one)]


def _point_source(points: Sequence[ReusableSet]) -> CloneSource | None:
    return _source_of(points[0], SourceKind.POINT, is_prepared=True) if points else None


def prepared_form(home: str, source: CloneSource, rules: str) -> CloneSource:
    """Return the source's prepared set.

    `rules` is the digest of the rules that masked the set, or "" if it is unmasked. If the source has no set prepared
    by these rules, return its unmasked prepared set. If that does not exist either, return the source. A prepared set
    that has the expected name but other data is ignored.
    """
    for wanted in dict.fromkeys((rules, "")):
        stored = find(home, PREPARED, name_of(source, wanted))
        if stored is not None and (stored.phase, stored.key, stored.rules) == (CopyPhase.READY, source.key, wanted):
            return _source_of(stored, source.kind, is_prepared=True)
    return source


def mark_used(settings: Settings, home: str, source: CloneSource, at: datetime) -> None:
    """Record that a clone of the set was created at the time `at`. The reaper uses this time to keep the set longer.

    If a subject creates the clone, the recorded time is at most `clones.max_age` after the creation of the set. The
    reason is that the set prevents ZFS from destroying production's snapshots.
    """
    set_id = source.set.backup_id
    received = anchor_of(home, RECEIVED, f"{set_id}-{source.key[:8]}")
    if not datasets.exists(received):
        # A replay created the set, or an earlier version received it.
        received = anchor_of(home, RECEIVED, set_id)
    for anchor in (received, anchor_of(home, PREPARED, name_of(source, source.rules))):
        if datasets.exists(anchor):
            used = at
            if expected_clone.current_causer():
                made = read_stamp(datasets.properties(anchor, [_CREATED])[_CREATED].value)
                used = min(at, end_of_age(made, settings.clones.max_age))
            datasets.set_properties(anchor, {clone_info.USED_PROPERTY: stamp(used)})


def facts_of(
    set_id: str,
    instance: str,
    origin: SourceServer,
    kind: SourceKind,
    begun: datetime,
    name: str = "",
    rules: str = "",
    key: str = "",
) -> dict[str, str]:
    """Return the record for the anchor of a set whose creation begins at `begun`.

    `name`, `rules` and `key` are set only for a prepared set.
    """
    new = SetRecord(
        name=name or set_id,
        anchor="",
        source=kind,
        set_id=set_id,
        instance=instance,
        origin=origin,
        phase=CopyPhase.MAKING,
        created=stamp(begun),
        used=stamp(begun),
        rules=rules,
        key=key,
    )
    return {**NO_SNAPSHOTS, KEPT_PROPERTY: new.name, **property_fields.properties_of(new)}


def refuse_clones(stored: ReusableSet) -> None:
    """Raise PreflightError if clones depend on the set."""
    if stored.clones:
        raise PreflightError(
            f"{stored.anchor} has clones: {', '.join(stored.clones)}",
            hint="destroy the clones first; `zsnapdb clone list` shows them",
        )


def remove(stored: ReusableSet) -> None:
    """Check that every dataset has the set's mark, then destroy the set.

    Raises:
        PreflightError: the set has clones; nothing was destroyed.
    """
    refuse_clones(stored)
    # A dataset that is still being received has the mark of a restore.
    marks = Mark(KEPT_PROPERTY, stored.name), Mark(RESTORED_PROPERTY)
    with copies.destroying(stored.anchor, *marks) as members:
        for dataset in members:
            # A killed run may have left a server on the files.
            point = Path(datasets.properties(dataset, ["mountpoint"])["mountpoint"].value)
            for root in (point, point.parent) if point.is_absolute() else ():
                server.ServerProcess(root / PRIVATE_FOLDER).kill()
        destruction.destroy_datasets(members, *marks, with_snapshots=True)


def remove_if_exists(home: str, kind: str, name: str) -> None:
    """Destroy the set with the given name if it exists, complete or not."""
    stored = find(home, kind, name)
    if stored is not None:
        remove(stored)


def drop_unused_of_subjects(settings: Settings, instance: str, was_source: str) -> None:
    """Remove the instance's sets that were received for subjects and whose clones were all destroyed.

    The caller has removed a clone with a source of kind `was_source`. If sources of this kind never use a received set,
    nothing is done. If another process is about to clone a set, or a set cannot be removed, the set stays until the
    next sweep.
    """
    if was_source not in (SourceKind.REPOSITORY, SourceKind.POINT, SourceKind.COMMIT):
        return
    with locks.if_none_uses_received(instance) as is_free, contextlib.suppress(ZsnapdbError):
        for item in known_sets(settings, RECEIVED).copies if is_free else ():
            if item.is_of_nobody and item.instance == instance:
                with if_free(item.lock) as is_set_free:
                    if is_set_free:
                        remove(item)


def remove_unused(item: ReusableSet) -> None:
    """Destroy the set. Raises the errors of `remove`.

    Raises:
        BusyError: the set was received for a subject, and a process is about to clone it.
    """
    if not item.caused_by:
        remove(item)
        return
    with locks.if_none_uses_received(item.instance) as is_free:
        if not is_free:
            raise BusyError(f"a clone of {item.anchor} is being made", hint="the next sweep looks again")
        remove(item)


T = TypeVar("T")


def _recorded(instance: Instance, pool: int) -> Mapping[str, int]:
    # Import late, because the modules for repositories are not needed to order sets that exist only on this host.
    from zsnapdb.jobs.record.host_backup_record import recorded_groups

    return recorded_groups(instance, pool)


def oldest_first(
    instance: Instance, items: Iterable[T], set_of: Callable[[T], str], origin_of: Callable[[T], SourceServer]
) -> list[T]:
    """Return the items ordered by the age of their sets, oldest first.

    If a set no longer exists on production's datasets, its age comes from this host's record. A set of unknown age is
    treated as the oldest, because nothing proves that it is newer than another set. A set outside production's pool is
    also treated as the oldest.
    """
    listed = list(items)
    names: dict[str, set[str]] = {}
    for item in listed:
        place = next(iter(origin_of(item).volumes.values())).dataset
        names.setdefault(place, set()).add(set_of(item))
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    pools: dict[str, int] = {}
    for place, ids in names.items():
        # If production was moved or removed, its datasets do not show the order of the sets.
        with contextlib.suppress(ZsnapdbError):
            pool = pools[place] = version.pool_guid(pool_of(place))
            shorts = {one: snapshot_name(one) if is_backup_id(one) else one for one in ids}
            here = snapshots.created_in(place, list(shorts.values()))
            known = _recorded(instance, pool) if len(here) < len(shorts) else {}
            groups |= {(place, one): (pool, here.get(short, known.get(one, 0))) for one, short in shorts.items()}
    volumes = instance.settings.volumes or {}
    production = {pool for place, pool in pools.items() if not volumes or place in volumes.values()}

    def group(item: T) -> tuple[int, int]:
        return groups.get((next(iter(origin_of(item).volumes.values())).dataset, set_of(item)), (0, 0))

    return creation_order.by_pool(listed, group, production)


def kept_since(source: object, known: Iterable[CloneClaim], host: Host) -> str:
    """Return the time since which subjects have kept this source's data.

    The result is for a clone that is created from the source now. `known` contains all other clones. Clones that belong
    to root are ignored.
    """
    of_commit = begun_of(source)
    if of_commit or not isinstance(source, CloneSource):
        return of_commit or stamp(host.latest())
    held = (one.since for one in known if one.key == source.key and one.owner != ROOT)
    return min((stamp(host.latest()), *held), key=read_stamp)


def begun_after(settings: Settings, host: Host, info: CloneInfo, source: CloneSource) -> str:
    """Return the result of `kept_since` for a clone whose data will be replaced with the data of this source.

    Raises:
        PreflightError: the new data is older than the present data, and a subject may not keep data of that age until
            the lease ends.
    """
    before = info.since
    others = [one for one in catalogue.claims(settings).copies if one.name != info.name]
    found = kept_since(source, others, host)
    if source.kind is SourceKind.COMMIT or source.key == info.key or commits(info.current):
        # Some of the clone's old data stays on its datasets.
        found = min(found, before, key=read_stamp)
    if read_stamp(found) < read_stamp(before):
        require(settings, info.lease, None, found)
    return found


def settled(info: CloneInfo, time: RemovalTime) -> CloneInfo:
    """Return the clone with corrected times. If the clock was wrong, the lease and the age of the data start now."""
    lease = leases.settled(info.lease, read_stamp(info.created), time)
    is_wrong = info.begun and read_stamp(info.begun) != FOREVER and time.is_wrong(read_stamp(info.begun))
    return replace(info, lease=lease, begun=stamp(time.latest) if is_wrong else info.begun)


def settle(info: CloneInfo, time: RemovalTime) -> CloneInfo:
    """Record the corrected times of the clone, and return the corrected clone."""
    settle_lease(info.top, info.created, info.lease, time, {BEGUN_PROPERTY: info.begun})
    return settled(info, time)


def require(settings: Settings, lease: CloneLease, before: CloneLease | None, since: str) -> CloneLease:
    """Return the lease if the subject may have it.

    Raises:
        PreflightError: a subject requests the lease, and the clone's data would exceed its maximum age before the lease
            ends.
    """
    if not expected_clone.current_causer():
        return lease
    return require_within_age(lease, before, read_stamp(since), settings.clones.max_age)
