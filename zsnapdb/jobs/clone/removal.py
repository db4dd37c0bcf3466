"""Plans what destroying a clone removes or hands over, from what ZFS says now, and carries that plan out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import SNAPSHOT_PREFIX
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import foreign, handed, heartbeat, locks, reusable_sets, taken_over
from zsnapdb.jobs.clone.foreign import SeenSnapshots
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY, COMMIT_PROPERTY, clone_mark
from zsnapdb.jobs.clone.reusable_sets import PREPARED, ReusableSet
from zsnapdb.jobs.clone.volumes import drop_detaching, is_detaching, remove_folders
from zsnapdb.jobs.copies.properties import PHASE_PROPERTY, CopyPhase
from zsnapdb.mysql.process.server import PRIVATE_FOLDER, ServerProcess
from zsnapdb.planning.clone.removal import OwnSnapshot, Removal, removal
from zsnapdb.zfs import datasets, owned, snapshots


@dataclass(frozen=True)
class CloneRemoval:
    """What destroying a clone does.

    `prepared` are prepared forms of its commits, which go before it. `obstacles` say why it cannot be destroyed.
    `has_detaching`: whether an interrupted detach left snapshots on it.
    """

    steps: Removal
    prepared: tuple[ReusableSet, ...] = ()
    obstacles: tuple[str, ...] = ()
    has_detaching: bool = False

    @property
    def heirs(self) -> tuple[str, ...]:
        """The names of the clones that take over commits."""
        return tuple(sorted({step.clone for step in self.steps.promotions}))


def plan_removal(anchor: str, name: str, seen: SeenSnapshots | None = None) -> CloneRemoval:
    """Return what destroying the clone would do; change nothing.

    NotOursError if a dataset below the anchor does not carry the clone's name. `seen` are all snapshots below the
    anchor, with `foreign.COLUMNS` (None: they are read here).
    """
    members = owned.members_with(anchor, ["origin"], clone_mark(name))
    if not members:
        return CloneRemoval(removal({}, (), {}))
    seen = snapshots.below(anchor, foreign.COLUMNS) if seen is None else seen
    own, has_detaching = _snapshots(seen), any(is_detaching(snapshot.name) for snapshot in seen)
    home = anchor.rpartition("/")[0]
    commits = sorted({snapshot.commit for snapshot in own if snapshot.commit})
    prepared = tuple(reusable_sets.prepared_commits(home, commits)) if commits else ()
    obstacles = [
        f"{', '.join(item.clones)} depends on the prepared form of commit {item.set_id}"
        for item in prepared
        if item.clones
    ]
    without = {dataset for item in prepared for dataset in item.members}
    own = [replace(s, clones=tuple(clone for clone in s.clones if clone not in without)) for s in own]
    heirs = _heirs({clone: s.full_name for s in own for clone in s.clones if clone not in members})
    obstacles += [f"{dataset}, which is not ours, is a clone of {base}" for dataset, base in heirs.foreign.items()]
    if obstacles:
        return CloneRemoval(removal({}, (), {}), prepared, tuple(obstacles))
    origins = {dataset: values["origin"].value for dataset, values in members.items()}
    origins = {dataset: "" if origin == datasets.UNSET else origin for dataset, origin in origins.items()}
    return CloneRemoval(removal(origins, own, heirs.clones), prepared, has_detaching=has_detaching)


def _snapshots(seen: SeenSnapshots) -> list[OwnSnapshot]:
    result = []
    for snapshot, values in seen.items():
        mark = values[COMMIT_PROPERTY]
        is_commit = mark.is_local and snapshot.name == f"{SNAPSHOT_PREFIX}{mark.value}"
        clones = tuple(c for c in values["clones"].value.split(",") if c not in ("", datasets.UNSET))
        if not is_detaching(snapshot.name):
            result.append(
                OwnSnapshot(
                    snapshot.dataset, snapshot.name, snapshot.createtxg, mark.value if is_commit else "", clones
                )
            )
    return result


@dataclass(frozen=True)
class _Heirs:
    """The datasets that were cloned from the clone's snapshots: of other clones (with their names), and foreign ones.

    `foreign` has the snapshot that each was cloned from.
    """

    clones: Mapping[str, str]
    foreign: Mapping[str, str]


def _heirs(dependents: Mapping[str, str]) -> _Heirs:
    marks = datasets.properties_of(sorted(dependents), [CLONE_PROPERTY]) if dependents else {}
    ours = {
        dataset: values[CLONE_PROPERTY].value for dataset, values in marks.items() if values[CLONE_PROPERTY].is_local
    }
    return _Heirs(ours, {dataset: base for dataset, base in dependents.items() if dataset not in ours})


def refuse_obstacles(name: str, planned: CloneRemoval) -> None:
    """Raise PreflightError if something that cannot take over its origin depends on the clone."""
    if planned.obstacles:
        raise PreflightError(
            f"clone {name} cannot be destroyed: {'; '.join(planned.obstacles)}",
            hint="destroy what depends on the clone first, or `zsnapdb clone detach` it",
        )


def remove_all(host: Host, anchor: str, name: str, root: Path, planned: CloneRemoval | None = None) -> None:
    """End the clone's server, destroy the anchor and all datasets below it, and remove the mount folders.

    Every dataset is proved to carry the clone's name first. A commit that another clone depends on is handed over to
    that clone. PreflightError, and nothing is changed, if something else depends on the clone. The caller holds the
    clone's lock. `planned` is the plan that it made under the lock (None: it is made here).
    """
    mark = clone_mark(name)
    planned = planned or plan_removal(anchor, name)
    with contextlib.ExitStack() as locked:
        if planned.heirs:
            for heir in planned.heirs:
                locked.enter_context(locks.on_clone(heir))
            planned = plan_removal(anchor, name)
        refuse_obstacles(name, planned)
        if planned.steps.datasets:
            datasets.set_properties(anchor, {PHASE_PROPERTY: CopyPhase.DESTROYING})
        ServerProcess(root / PRIVATE_FOLDER).kill()
        if planned.has_detaching:
            drop_detaching(anchor, mark)
        for item in planned.prepared:
            with locks.on_reusable_set(PREPARED, item.name):
                reusable_sets.remove(item)
        heirs = {_revision_of(anchor, step.dataset) for step in planned.steps.promotions}
        if heirs:
            most = int(datasets.properties(anchor, ["used"])["used"].value)
            locked.enter_context(taken_over.taking_over(sorted(heirs), most))
        for step in planned.steps.promotions:
            datasets.promote(step.dataset)
        if not planned.steps.snapshots:
            owned.destroy_datasets(planned.steps.datasets, mark)
        for dataset in planned.steps.datasets if planned.steps.snapshots else ():
            _destroy_commits(planned.steps, dataset)
            owned.destroy_datasets([dataset], mark)
        for dataset in {step.dataset for step in planned.steps.promotions}:
            _destroy_commits(planned.steps, dataset)
    remove_folders(root)
    heartbeat.forget(host, name)
    handed.forget(host, name)


def _revision_of(anchor: str, dataset: str) -> str:
    """Return the dataset of the revision that a volume of another clone beside the anchor belongs to."""
    return "/".join(dataset.split("/")[: anchor.count("/") + 2])


def _destroy_commits(steps: Removal, dataset: str) -> None:
    for snapshot in steps.snapshots:
        if snapshot.dataset == dataset:
            owned.destroy_set([snapshot.name], snapshot.commit)
