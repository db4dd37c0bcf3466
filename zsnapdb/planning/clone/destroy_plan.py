"""Plans the removal of a clone's datasets and commits, and the move of commits to other clones. Pure.

If nothing depends on a commit, the commit is removed with its clone. If another clone depends on the commit, it becomes
a commit of that clone: `zfs promote` moves the snapshot to the dependent dataset (zfs-promote(8)). All other parts of
the destroyed clone are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class OwnSnapshot:
    """A snapshot of a clone's dataset, with its commit ("" if it has none) and the datasets cloned from it."""

    dataset: str
    short: str
    createtxg: int
    commit: str = ""
    clones: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The full name of the snapshot, as `zfs` prints it."""
        return f"{self.dataset}@{self.short}"


@dataclass(frozen=True)
class Promotion:
    """A `zfs promote` of another clone's dataset.

    That dataset takes over the snapshot from which it was cloned, and all earlier snapshots.
    """

    dataset: str
    clone: str


@dataclass(frozen=True)
class CommitSnapshot:
    """A snapshot of a removed commit, with its name after all promotions."""

    dataset: str
    name: str
    commit: str


@dataclass(frozen=True)
class Removal:
    """The steps that destroy a clone, in this order.

    - `promotions`
    - for each of `datasets`: its remaining commits, then the dataset
    - unneeded commits that a promotion moved to another clone

    The field `kept` maps each remaining commit to its new clone.
    """

    promotions: tuple[Promotion, ...]
    datasets: tuple[str, ...]
    snapshots: tuple[CommitSnapshot, ...]
    kept: Mapping[str, str]

    @property
    def removed(self) -> tuple[str, ...]:
        """The removed commits, oldest first."""
        return tuple(sorted({snapshot.commit for snapshot in self.snapshots}))


def removal(origins: Mapping[str, str], snapshots: Sequence[OwnSnapshot], heirs: Mapping[str, str]) -> Removal:
    """Return the steps that destroy the clone.

    The argument `origins` maps each dataset of the clone to the snapshot from which it was cloned ("" if there is
    none). Datasets of other clones may have been cloned from `snapshots`. The argument `heirs` maps each of them to the
    name of its clone.
    """
    state = _State(dict(origins), list(snapshots))
    promotions: list[Promotion] = []
    kept: dict[str, str] = {}
    while (pair := state.next_dependent()) is not None:
        snapshot, heir = pair
        promotions.append(Promotion(heir, heirs[heir]))
        if snapshot.commit:
            kept[snapshot.commit] = heirs[heir]
        state.promote(heir, snapshot)
    kept |= {s.commit: heirs[s.dataset] for s in state.snapshots if s.commit and set(s.clones) - set(origins)}
    going = tuple(
        CommitSnapshot(snapshot.dataset, snapshot.full_name, snapshot.commit)
        for snapshot in state.snapshots
        if snapshot.commit and snapshot.commit not in kept
    )
    return Removal(tuple(promotions), _dependents_first(state.origins), going, kept)


class _State:
    """The datasets and snapshots of the clone after the promotions that were planned so far."""

    def __init__(self, origins: dict[str, str], snapshots: list[OwnSnapshot]) -> None:
        self.origins = origins
        self.snapshots = snapshots

    def next_dependent(self) -> tuple[OwnSnapshot, str] | None:
        """Return a snapshot on which a dataset of another clone depends, and this dataset; None if there is none.

        The dependent dataset is chosen by its name, so that all volumes of a commit go to the same clone.
        """
        pairs = [
            (clone, snapshot)
            for snapshot in self.snapshots
            if snapshot.dataset in self.origins
            for clone in snapshot.clones
            if clone not in self.origins
        ]
        return min(((snapshot, clone) for clone, snapshot in pairs), key=lambda pair: pair[1], default=None)

    def promote(self, heir: str, base: OwnSnapshot) -> None:
        """Change this state as `zfs promote` of the dataset `heir` would change it.

        The heir takes over the snapshots up to its origin. Its new origin is the former origin of their dataset.
        """
        parent = base.dataset
        grandparent = self.origins[parent]
        moved = []
        for snapshot in self.snapshots:
            clones = snapshot.clones
            if snapshot == base:
                clones = (*(clone for clone in clones if clone != heir), parent)
            if snapshot.full_name == grandparent:
                clones = tuple(heir if clone == parent else clone for clone in clones)
            on = heir if snapshot.dataset == parent and snapshot.createtxg <= base.createtxg else snapshot.dataset
            moved.append(replace(snapshot, dataset=on, clones=clones))
        self.snapshots = moved
        self.origins[parent] = f"{heir}@{base.short}"
        for dataset, origin in self.origins.items():
            name, _, short = origin.partition("@")
            if name == parent and any(s.dataset == heir and s.short == short for s in moved):
                self.origins[dataset] = f"{heir}@{short}"


def _dependents_first(origins: Mapping[str, str]) -> tuple[str, ...]:
    """Return the datasets in the order of destruction: children before their parents, clones before their origins."""
    left = dict(origins)
    order: list[str] = []
    while left:
        needed = {origin.partition("@")[0] for origin in left.values()}
        free = [
            dataset
            for dataset in left
            if dataset not in needed and not any(other.startswith(dataset + "/") for other in left)
        ]
        # A loop is impossible, because a clone is younger than its origin. If the properties nevertheless show a loop,
        # leave the order to `zfs`.
        chosen = max(free or list(left), key=lambda dataset: (len(dataset), dataset))
        order.append(chosen)
        del left[chosen]
    return tuple(order)
