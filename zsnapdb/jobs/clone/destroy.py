"""Destroys clones and what a failed run left of them. A dataset goes only if it carries the clone's name, locally."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.clone import foreign, locks, properties
from zsnapdb.jobs.clone.catalogue import CloneInfo, find
from zsnapdb.jobs.clone.properties import ClonePhase, clone_mark
from zsnapdb.jobs.clone.sources import CloneSource, Commit, SourceKind, commits
from zsnapdb.jobs.clone.volumes import drop_detaching, remove_folders
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.local_sets import local_sets
from zsnapdb.jobs.server_copy.prepare import PRIVATE_FOLDER
from zsnapdb.jobs.set_properties import LIVE
from zsnapdb.model import SnapshotSet
from zsnapdb.mysql.server import ServerProcess
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, owned, snapshots


@dataclass(frozen=True)
class DestroyPlan:
    """What `destroy` removes: the clone's server, commits and datasets, and a live set that only this clone uses.

    `foreign` are snapshots that others made on its datasets.
    """

    info: CloneInfo
    commits: tuple[Commit, ...]
    foreign: tuple[ForeignSnapshot, ...] = ()


class GoesToo(StrEnum):
    """What goes with a clone only if the caller says so: its commits, the snapshots that others made on it."""

    COMMITS = "commits"
    FOREIGN_SNAPSHOTS = "foreign-snapshots"


def plan(settings: Settings, name: str, also: Collection[GoesToo] = ()) -> DestroyPlan | None:
    """Return what `destroy` would do; None if there is no such clone. Change nothing.

    PreflightError if another clone depends on this clone, or if it has commits or snapshots of others that are
    not in `also`.
    """
    try:
        info = find(settings, name)
    except NotThere:
        return None
    made = tuple(commits(info.top))
    cloned = [f"{commit.set.backup_id} (cloned as {', '.join(commit.clones)})" for commit in made if commit.clones]
    if cloned:
        raise PreflightError(
            f"clone {name} has commits that were cloned: {'; '.join(cloned)}",
            hint="destroy or detach the clones of these commits first",
        )
    if made and GoesToo.COMMITS not in also:
        raise PreflightError(
            f"clone {name} has commits: {', '.join(commit.set.backup_id for commit in made)}",
            hint="add --commits to destroy the commits too, or keep the clone",
        )
    owned.members(info.top, clone_mark(name))
    return DestroyPlan(info, made, tuple(foreign.refuse(info.top, name, may_go=GoesToo.FOREIGN_SNAPSHOTS in also)))


def destroy(settings: Settings, name: str, also: Collection[GoesToo] = ()) -> DestroyPlan | None:
    """Stop the clone's server and destroy exactly its datasets; None if there is no such clone, so it can be repeated.

    Every dataset must carry the clone's name, set locally; else nothing is destroyed. `reap` finishes an interrupted
    destroy.
    """
    with locks.on_clone(name):
        return destroy_locked(settings, name, also)


def destroy_locked(settings: Settings, name: str, also: Collection[GoesToo] = ()) -> DestroyPlan | None:
    """Destroy the clone; the caller holds the clone's lock."""
    planned = plan(settings, name, also)
    if planned is None:
        return None
    info = planned.info
    instance = settings.instance.get(info.instance)
    datasets.set_properties(info.top, {properties.PHASE_PROPERTY: ClonePhase.DESTROYING})
    foreign.let_go(planned.foreign, name)
    for commit in planned.commits:
        destroy_commit(commit.set)
    remove_all(info.top, name, info.mount)
    if info.source == SourceKind.LIVE and instance is not None and instance.volumes is not None:
        drop_unused_live(Instance.of(settings, info.instance), info.backup_id)
    return planned


def destroy_commit(made: SnapshotSet) -> None:
    """Destroy the snapshots of a commit; each must carry the id of the commit."""
    owned.destroy_set([snapshot.full_name for snapshot in made.snapshots.values()], made.backup_id)


def remove_all(anchor: str, name: str, root: Path) -> None:
    """End the clone's server, destroy the anchor and all datasets below it, and remove the mount folders.

    Every dataset is proved to carry the clone's name first.
    """
    mark = clone_mark(name)
    members = owned.members(anchor, mark)
    ServerProcess(root / PRIVATE_FOLDER).kill()
    drop_detaching(anchor, mark)
    owned.destroy_datasets(members, mark)
    remove_folders(root)


def drop_live(source: CloneSource) -> None:
    """Remove the live set that was taken for a clone which could not be made; other sources stay."""
    if source.kind is SourceKind.LIVE:
        owned.destroy_set([snapshot.full_name for snapshot in source.set.snapshots.values()], source.set.backup_id)


def unused_live(instance: Instance) -> list[SnapshotSet]:
    """Return the instance's live sets (taken for clones) that have no clones."""
    return [
        live
        for live in local_sets(instance, LIVE)
        if not any(snapshots.has_clones(snapshot.full_name) for snapshot in live.snapshots.values())
    ]


def drop_unused_live(instance: Instance, backup_id: str) -> None:
    """Remove the live set of that id unless another clone needs it.

    If another process works on the instance's live sets, the set stays until the next sweep.
    """
    with locks.if_free(f"live-{instance.name}") as free:
        for live in unused_live(instance) if free else []:
            if live.backup_id == backup_id:
                owned.destroy_set([snapshot.full_name for snapshot in live.snapshots.values()], backup_id)
