"""Destroys clones, and what is left of those that came to nothing. Only what carries the clone's name, set locally."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.clone import locks, properties
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
from zsnapdb.zfs import datasets, owned, snapshots


@dataclass(frozen=True)
class DestroyPlan:
    """What destroying a clone does: its server, its commits, its datasets, the live set that only it was made of."""

    info: CloneInfo
    commits: tuple[Commit, ...]


def plan(settings: Settings, name: str, *, with_commits: bool) -> DestroyPlan | None:
    """Return what `destroy` would do, None if there is no such clone; changes nothing.

    PreflightError if anything depends on it.
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
            hint="destroy those clones first, or detach them",
        )
    if made and not with_commits:
        raise PreflightError(
            f"clone {name} has commits: {', '.join(commit.set.backup_id for commit in made)}",
            hint="--commits destroys them too; or keep the clone",
        )
    owned.members(info.top, clone_mark(name))
    return DestroyPlan(info, made)


def destroy(settings: Settings, name: str, *, with_commits: bool = False) -> DestroyPlan | None:
    """Stop the clone's server and destroy exactly its datasets; None if there is no such clone, so it can be repeated.

    Each dataset must carry its name, set locally, or nothing is destroyed. What is cut short is finished by `reap`.
    """
    with locks.on_clone(name):
        return destroy_held(settings, name, with_commits=with_commits)


def destroy_held(settings: Settings, name: str, *, with_commits: bool = False) -> DestroyPlan | None:
    """Destroy the clone, its lock being held by the caller."""
    planned = plan(settings, name, with_commits=with_commits)
    if planned is None:
        return None
    info = planned.info
    instance = settings.instance.get(info.instance)
    datasets.set_properties(info.top, {properties.PHASE_PROPERTY: ClonePhase.DESTROYING})
    for commit in planned.commits:
        destroy_commit(commit.set)
    remove_all(info.top, name, info.mount)
    if info.source == SourceKind.LIVE and instance is not None and instance.volumes is not None:
        drop_unused_live(Instance.of(settings, info.instance), info.backup_id)
    return planned


def destroy_commit(made: SnapshotSet) -> None:
    """Destroy the snapshots of a commit; each must carry its id."""
    owned.destroy_set([snapshot.full_name for snapshot in made.snapshots.values()], made.backup_id)


def remove_all(anchor: str, name: str, root: Path) -> None:
    """End the clone's server and destroy the anchor and all below it, each proved to carry its name.

    Then the folders it was mounted at.
    """
    mark = clone_mark(name)
    members = owned.members(anchor, mark)
    ServerProcess(root / PRIVATE_FOLDER).kill()
    drop_detaching(anchor, mark)
    owned.destroy_datasets(members, mark)
    remove_folders(root)


def drop_live(source: CloneSource) -> None:
    """Remove the fresh snapshot set of a clone that came to nothing."""
    if source.kind is SourceKind.LIVE:
        owned.destroy_set([snapshot.full_name for snapshot in source.set.snapshots.values()], source.set.backup_id)


def unused_live(instance: Instance) -> list[SnapshotSet]:
    """Return the instance's snapshot sets that were taken for clones and have none (left)."""
    return [
        found
        for found in local_sets(instance, LIVE)
        if not any(snapshots.has_clones(s.full_name) for s in found.snapshots.values())
    ]


def drop_unused_live(instance: Instance, backup_id: str) -> None:
    """Remove the live set of that id unless another clone needs it, or somebody is at work on the instance's live sets (the next sweep removes it)."""
    with locks.if_free(f"live-{instance.name}") as free:
        for found in unused_live(instance) if free else []:
            if found.backup_id == backup_id:
                owned.destroy_set([snapshot.full_name for snapshot in found.snapshots.values()], backup_id)
