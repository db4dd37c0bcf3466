"""What destroying a clone removes, and what it hands over to clones that were made from its commits. Pure.

A commit that nothing depends on goes with its clone. A commit that another clone depends on becomes a commit of that
clone: `zfs promote` moves the snapshot to the dataset that was cloned from it (zfs-promote(8)). Nothing else of the
destroyed clone stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class OwnSnapshot:
    """A snapshot of a dataset of the clone: its commit ("": it is of no commit) and the datasets cloned from it."""

    dataset: str
    short: str
    createtxg: int
    commit: str = ""
    clones: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name of the snapshot as `zfs` has it."""
        return f"{self.dataset}@{self.short}"


@dataclass(frozen=True)
class Promotion:
    """`zfs promote` of a dataset of another clone: it takes over the snapshot it was cloned from, and those before."""

    dataset: str
    clone: str


@dataclass(frozen=True)
class CommitSnapshot:
    """A snapshot of a commit that goes, under the name that it has after all promotions."""

    dataset: str
    name: str
    commit: str


@dataclass(frozen=True)
class Removal:
    """What destroying a clone does, in this order.

    All promotions; then each dataset, its remaining commits first; then commits that nothing needs and that a promotion
    moved to another clone. `kept` has the new clone of each commit that stays.
    """

    promotions: tuple[Promotion, ...]
    datasets: tuple[str, ...]
    snapshots: tuple[CommitSnapshot, ...]
    kept: Mapping[str, str]

    @property
    def removed(self) -> tuple[str, ...]:
        """The commits that go, oldest first."""
        return tuple(sorted({snapshot.commit for snapshot in self.snapshots}))


def removal(origins: Mapping[str, str], snapshots: Sequence[OwnSnapshot], heirs: Mapping[str, str]) -> Removal:
    """Return how the clone is destroyed.

    `origins` has the snapshot that each dataset of the clone was cloned from ("": none). `heirs` has the name of the
    clone of each other dataset that was cloned from one of the snapshots.
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
    """The datasets of the clone and the snapshots, as they are after the promotions so far."""

    def __init__(self, origins: dict[str, str], snapshots: list[OwnSnapshot]) -> None:
        self.origins = origins
        self.snapshots = snapshots

    def next_dependent(self) -> tuple[OwnSnapshot, str] | None:
        """Return a snapshot of the clone that another dataset depends on, and that dataset; None: there is none left.

        The choice is by name, so that all volumes of a commit go to the same clone.
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
        """Do what `zfs promote` does: the heir gets the snapshots up to its origin, and the origin of their dataset."""
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
    """Return the datasets in an order in which each can be destroyed: inner ones and clones before what they are of."""
    left = dict(origins)
    order: list[str] = []
    while left:
        needed = {origin.partition("@")[0] for origin in left.values()}
        free = [
            dataset
            for dataset in left
            if dataset not in needed and not any(other.startswith(dataset + "/") for other in left)
        ]
        # A circle cannot be: a clone is younger than its origin. If the properties say so, `zfs` has the last word.
        chosen = max(free or list(left), key=lambda dataset: (len(dataset), dataset))
        order.append(chosen)
        del left[chosen]
    return tuple(order)
