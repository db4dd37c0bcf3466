"""Destroys clones, and leftovers of clones from failed runs.

A dataset is destroyed only if a property of the dataset itself contains the clone's name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.domain_types import SNAPSHOT_PREFIX, SnapshotSet
from zsnapdb.base.errors import NotFound, PreflightError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import if_free
from zsnapdb.jobs.base.snapshot_set_properties import LIVE
from zsnapdb.jobs.clone import (
    cached_sets,
    catalogue,
    clone_info,
    expected_clone,
    kept_ports,
    locks,
    reset_baseline,
    volumes,
)
from zsnapdb.jobs.clone.cached_sets import PREPARED, ReusableSet
from zsnapdb.jobs.clone.catalogue import find, is_dataset, listing, of_dataset
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, COMMIT_PROPERTY, SOURCE_PART, CloneInfo, clone_mark
from zsnapdb.jobs.clone.sources import COMMIT_COLUMNS, CloneSource, Commit, commits_among
from zsnapdb.jobs.clone.volumes import SeenSnapshots, drop_detaching, is_detaching, remove_folders
from zsnapdb.jobs.dataset_copies.catalogue import dependents
from zsnapdb.jobs.dataset_copies.properties import PHASE_PROPERTY, CopyPhase
from zsnapdb.jobs.dataset_copies.sweep import ExtraRemoval
from zsnapdb.jobs.host.local_snapshot_sets import described_sets
from zsnapdb.mysql.process.server import PRIVATE_FOLDER, ServerProcess
from zsnapdb.planning.clone.destroy_plan import OwnSnapshot, Removal, removal
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, destruction, mounts, snapshots
from zsnapdb.zfs.mounts import ForeignMount


@dataclass(frozen=True)
class CloneRemoval:
    """The plan to destroy a clone.

    `prepared` contains the prepared sets that were made from the clone's commits. They are destroyed first. `obstacles`
    contains the reasons that prevent the removal. `has_detaching` is set if an interrupted detach left snapshots on the
    clone. `foreign` contains datasets outside the clone that depend on it, such as production after `zfs promote` of
    the clone.
    """

    steps: Removal
    prepared: tuple[ReusableSet, ...] = ()
    obstacles: tuple[str, ...] = ()
    has_detaching: bool = False
    foreign: tuple[str, ...] = ()

    @property
    def heirs(self) -> tuple[str, ...]:
        """The names of the clones that take over commits of this clone."""
        return tuple(sorted({step.clone for step in self.steps.promotions}))


def plan_removal(anchor: str, name: str, seen: SeenSnapshots | None = None) -> CloneRemoval:
    """Return the plan to destroy the clone; change nothing.

    `seen` contains all snapshots below the anchor, with the properties `foreign.COLUMNS`. If `seen` is None, this
    function reads the snapshots.

    Raises:
        NotOursError: a dataset below the anchor does not have the mark of the clone.
    """
    members = destruction.members_with(anchor, ["origin"], clone_mark(name))
    if not members:
        return CloneRemoval(removal({}, (), {}))
    seen = snapshots.below(anchor, volumes.COLUMNS) if seen is None else seen
    own, has_detaching = _snapshots(seen), any(is_detaching(snapshot.name) for snapshot in seen)
    home = anchor.rpartition("/")[0]
    commits = sorted({snapshot.commit for snapshot in own if snapshot.commit})
    prepared = tuple(cached_sets.prepared_commits(home, commits)) if commits else ()
    obstacles = [
        f"{', '.join(item.clones)} depends on the prepared form of commit {item.set_id}"
        for item in prepared
        if item.clones
    ]
    without = {dataset for item in prepared for dataset in item.members}
    own = [replace(s, clones=tuple(clone for clone in s.clones if clone not in without)) for s in own]
    cloned = {clone: s.full_name for s in own for clone in s.clones if clone not in members}
    marks = datasets.properties_of(sorted(cloned), [CLONE_PROPERTY]) if cloned else {}
    heirs = {name: seen[CLONE_PROPERTY].value for name, seen in marks.items() if seen[CLONE_PROPERTY].is_local}
    foreign = tuple(name for name in cloned if name not in heirs)
    obstacles += [f"{name}, which is not ours, is a clone of {cloned[name]}" for name in foreign]
    if obstacles:
        return CloneRemoval(removal({}, (), {}), prepared, tuple(obstacles), foreign=foreign)
    origins = {dataset: values["origin"].value for dataset, values in members.items()}
    origins = {dataset: "" if origin == datasets.UNSET else origin for dataset, origin in origins.items()}
    return CloneRemoval(removal(origins, own, heirs), prepared, has_detaching=has_detaching)


def _snapshots(seen: SeenSnapshots) -> list[OwnSnapshot]:
    result = []
    for snapshot, values in seen.items():
        mark = values[COMMIT_PROPERTY]
        is_commit = mark.is_local and snapshot.name == f"{SNAPSHOT_PREFIX}{mark.value}"
        clones = dependents(values["clones"].value)
        if not is_detaching(snapshot.name):
            result.append(
                OwnSnapshot(
                    snapshot.dataset, snapshot.name, snapshot.createtxg, mark.value if is_commit else "", clones
                )
            )
    return result


def refuse_obstacles(name: str, planned: CloneRemoval) -> None:
    """Raise PreflightError if a dataset that depends on the clone cannot take over the snapshot it was cloned from."""
    if not planned.obstacles:
        return
    hints = [f"`zfs promote {dataset}` gives this dataset the snapshots that it needs" for dataset in planned.foreign]
    if len(planned.obstacles) > len(hints):
        hints.append("`zsnapdb clone detach` the clones of the prepared form, or destroy them")
    raise PreflightError(f"clone {name} cannot be destroyed: {'; '.join(planned.obstacles)}", hint="; ".join(hints))


def remove_all(host: Host, anchor: str, name: str, root: Path, planned: CloneRemoval | None = None) -> None:
    """Stop the clone's server, destroy the anchor and all datasets below it, and remove the mount folders.

    First, each dataset is checked for the clone's mark. If another clone depends on a commit, the commit is handed over
    to that clone. The caller must hold the clone's lock. `planned` is the plan that the caller made under the lock. If
    `planned` is None, this function makes the plan.

    Raises:
        PreflightError: a dataset outside the clone depends on it; nothing was changed.
    """
    mark = clone_mark(name)
    planned = planned or plan_removal(anchor, name)
    with contextlib.ExitStack() as locked:
        if planned.heirs:
            for heir in planned.heirs:
                locked.enter_context(locks.lock_clone(heir))
            planned = plan_removal(anchor, name)
        refuse_obstacles(name, planned)
        if planned.steps.datasets:
            datasets.set_properties(anchor, {PHASE_PROPERTY: CopyPhase.DESTROYING})
        ServerProcess(root / PRIVATE_FOLDER).kill()
        if planned.has_detaching:
            drop_detaching(anchor, mark)
        for item in planned.prepared:
            with locks.lock_reusable_set(PREPARED, item.name):
                cached_sets.remove(item)
        # The revisions of other clones, which are as deep as this clone's: one level below an anchor of the home.
        depth = anchor.count("/") + 2
        heirs = {"/".join(step.dataset.split("/")[:depth]) for step in planned.steps.promotions}
        if heirs:
            most = int(datasets.properties(anchor, ["used"])["used"].value)
            locked.enter_context(catalogue.taking_over(sorted(heirs), most))
        for step in planned.steps.promotions:
            datasets.promote(step.dataset)
        if not planned.steps.snapshots:
            destruction.destroy_datasets(planned.steps.datasets, mark)
        for dataset in planned.steps.datasets if planned.steps.snapshots else ():
            _destroy_commits(planned.steps, dataset)
            destruction.destroy_datasets([dataset], mark)
        for dataset in {step.dataset for step in planned.steps.promotions}:
            _destroy_commits(planned.steps, dataset)
    remove_folders(root)
    clone_info.forget_heartbeat(host, name)
    reset_baseline.forget(host, name)


def _destroy_commits(steps: Removal, dataset: str) -> None:
    for snapshot in steps.snapshots:
        if snapshot.dataset == dataset:
            destruction.destroy_set([snapshot.name], snapshot.commit)


@dataclass(frozen=True)
class DestroyPlan:
    """The plan of `destroy`: the clone, its commits, and the plan of their removal or handover.

    `foreign` contains the snapshots that other programs created on the clone's datasets. `elsewhere` contains the
    mounts of these datasets in other mount namespaces. `destroy` removes these mounts too.
    """

    info: CloneInfo
    commits: tuple[Commit, ...]
    removal: CloneRemoval
    foreign: tuple[ForeignSnapshot, ...] = ()
    elsewhere: tuple[ForeignMount, ...] = ()

    @property
    def removed_commits(self) -> tuple[Commit, ...]:
        return tuple(one for one in self.commits if one.set.backup_id in self.removal.steps.removed)


def plan(settings: Settings, host: Host, name: str, also: Collection[ExtraRemoval] = ()) -> tuple[DestroyPlan, ...]:
    """Return the plan of `destroy` for each clone with the given name; change nothing.

    The name can belong to a clone or to a set of clones. The replicas of a set come first. If there is no such clone or
    set, the result is empty.

    Raises:
        PreflightError: a dataset depends on a snapshot of a clone and cannot take over this snapshot, or a clone has
            foreign snapshots and `also` does not allow their removal.
    """
    found = find_clones(settings, host, name)
    for info in found:
        expected_clone.require(info, name)
    return tuple(_plan_one(info, also) for info in found)


def find_clones(settings: Settings, host: Host, name: str) -> list[CloneInfo]:
    """Return the clone with the given name, or the clones of the set, replicas first; empty if neither exists."""
    with contextlib.suppress(NotFound):
        return [find(settings, host, name)]
    members = [info for info in listing(settings, host) if info.set_name == name]
    return sorted(members, key=lambda info: (info.part == SOURCE_PART, info.name))


def _plan_one(info: CloneInfo, also: Collection[ExtraRemoval]) -> DestroyPlan:
    seen = snapshots.below(info.top, tuple({*volumes.COLUMNS, *COMMIT_COLUMNS}))
    planned = plan_removal(info.top, info.name, seen)
    refuse_obstacles(info.name, planned)
    going = volumes.refuse(info.top, info.name, may_go=ExtraRemoval.FOREIGN_SNAPSHOTS in also, seen=seen)
    own = mounts.namespace_of(info.pid) if info.pid is not None else ""
    elsewhere = [
        mount
        for mount in mounts.mounted_elsewhere(frozenset(info.datasets))
        # Mounts in the server's sandbox end with the server. Mounts in namespaces that receive this namespace's unmount
        # events end when the datasets are unmounted here.
        if not mount.follows and mounts.namespace_of(mount.pid) != own
    ]
    return DestroyPlan(info, tuple(commits_among(seen)), planned, tuple(going), tuple(elsewhere))


def destroy(settings: Settings, host: Host, name: str, also: Collection[ExtraRemoval] = ()) -> tuple[DestroyPlan, ...]:
    """Stop the server and destroy exactly the datasets of the clone, or of each clone in the set with the given name.

    If there is no such clone or set, the result is empty, so the command can be repeated. If a dataset does not have
    the mark of the clone, nothing of the clone is destroyed. `reap` finishes an interrupted destroy.

    Raises:
        UnknownNameError: another clone has the name now (`expected_clone.require`).
    """
    if is_dataset(settings, name):
        # Only the name of the dataset is needed to take the lock. The clone's properties are read under the lock.
        with locks.lock_clone(name):
            gone = destroy_locked(settings, host, name, also, called=name)
        if gone:
            return tuple(gone)
    names = [info.name for info in find_clones(settings, host, name)]
    if len(names) > 1:
        # If one clone of a set cannot be destroyed, destroy no clone of the set.
        plan(settings, host, name, also)
    done = []
    for one in names:
        with locks.lock_clone(one):
            done += destroy_locked(settings, host, one, also, called=name)
    if names and not done:
        # The clone was renamed meanwhile, or a swap gave it another dataset.
        return destroy(settings, host, name, also)
    return tuple(done)


def destroy_locked(
    settings: Settings, host: Host, name: str, also: Collection[ExtraRemoval] = (), *, called: str | None = None
) -> list[DestroyPlan]:
    """Destroy the clone whose dataset has the given name, if it exists. The caller must hold the clone's lock.

    If `called` is not None, the clone is destroyed only if it or its set has this name.
    """
    try:
        found = of_dataset(settings, host, name)
        if called is not None and not (found.is_called(called) or found.set_name == called):
            return []
    except NotFound:
        return []
    expected_clone.require(found, name)
    gone = _destroy(settings, host, found, also)
    if gone and found.id != found.name:
        _drop_replaced(settings, host, found.id)
    return gone


def destroy_own(settings: Settings, host: Host, name: str) -> None:
    """Destroy the clone whose dataset has the given name, if it exists. The clone was created by this process.

    The check of `expected_clone` is skipped: its environment variable identifies the clone that the user named, not
    this clone.
    """
    with locks.lock_clone(name), contextlib.suppress(NotFound):
        _destroy(settings, host, of_dataset(settings, host, name), ())


def _drop_replaced(settings: Settings, host: Host, name: str) -> None:
    """Destroy the datasets of a clone that a swap replaced, so that another clone can use their name.

    The next sweep destroys the datasets that remain, or reports why it cannot.
    """
    with if_free(locks.name_of_clone(name)) as is_free, contextlib.suppress(ZsnapdbError):
        if is_free and (before := of_dataset(settings, host, name)).pool is PoolMark.REPLACED:
            _destroy(settings, host, before, ())


def _destroy(settings: Settings, host: Host, found: CloneInfo, also: Collection[ExtraRemoval]) -> list[DestroyPlan]:
    name = found.name
    try:
        planned = _plan_one(found, also)
    except NotFound:
        return []
    info, origins = planned.info, dict[str, str]()
    # This clone may be the last clone of a live set, also if it has taken over the commit from which it was created.
    if info.source in (SourceKind.LIVE, SourceKind.COMMIT) and info.instance in settings.instance:
        seen = datasets.properties_of(list(info.volumes.values()), ["origin"])
        origins = {role: seen[dataset]["origin"].value for role, dataset in info.volumes.items()}
    volumes.destroy_snapshots(planned.foreign, name)
    remove_all(host, info.top, name, info.mount, None if planned.foreign else planned.removal)
    kept_ports.close(settings, host, info)
    cached_sets.drop_unused_of_subjects(settings, info.instance, info.source)
    names = {origin.partition(f"@{SNAPSHOT_PREFIX}")[2] for origin in origins.values()}
    if origins and "" not in names:
        # A live set has a snapshot of every volume, so its clone names them all, even if they are not configured.
        volumes_of_set = {role: origin.partition("@")[0] for role, origin in origins.items()}
        instance = Instance.of(settings, info.instance).on_host(host).with_volumes(volumes_of_set)
        for backup_id in sorted(names):
            drop_unused_live(instance, backup_id)
    return [planned]


def drop_live(source: CloneSource) -> None:
    """Remove the source if it is a live set. Call this if the creation of its clone failed."""
    if source.kind is SourceKind.LIVE:
        destruction.destroy_set(source.names, source.set.backup_id)


def unused_live(instance: Instance, only: str | None = None) -> list[SnapshotSet]:
    """Return the instance's live sets (snapshot sets created for clones) that have no clones.

    If `only` is not None, only the set with this id is checked. A set with zsnapdb's bookmarks is left out,
    because it is a backup whose recorded state another program changed.
    """
    unused = [
        live.set
        for live in described_sets(instance, LIVE, only=only)
        if not any(snapshots.has_clones(snapshot.full_name) for snapshot in live.set.snapshots.values())
    ]
    points = snapshots.bookmarks(instance.volumes.values()) if unused else {}
    stored = {(guid, name) for known in points.values() for guid, name in known.items()}
    return [one for one in unused if stored.isdisjoint(_bookmarks_of(one))]


def _bookmarks_of(live: SnapshotSet) -> set[tuple[int, str]]:
    return {(one.guid, f"{one.dataset}#{one.name}") for one in live.snapshots.values()}


def drop_unused_live(instance: Instance, backup_id: str) -> None:
    """Remove the live set with the given id, unless it still has clones.

    If another process has the lock of the instance's live sets, the set stays until the next sweep.
    """
    with if_free(f"live-{instance.name}") as free:
        for live in unused_live(instance, backup_id) if free else []:
            destruction.destroy_set([snapshot.full_name for snapshot in live.snapshots.values()], backup_id)
