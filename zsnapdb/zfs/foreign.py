"""Finds the snapshots that others made on datasets of ours, for example by a recursive snapshot of the pool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zsnapdb.base.model import Snapshot
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, holds, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.owned import Mark

COLUMNS = ("userrefs", "clones")
"""What is read of each snapshot beside its marks."""


def foreign_below(top: str, marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]) -> list[ForeignSnapshot]:
    """Return the snapshots of `top` and of the datasets below it that others made, oldest first.

    A snapshot is ours if it carries one of the marks, set locally, or if `is_ours` says so. Empty if `top` does not
    exist.
    """
    if not datasets.exists(top):
        return []
    return among(snapshots.below(top, (*(mark.name for mark in marks), *COLUMNS)), marks, is_ours)


def among(
    seen: Mapping[Snapshot, dict[str, Property]], marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]
) -> list[ForeignSnapshot]:
    """Return those of the snapshots that others made, see `below`. They were read with the marks and `COLUMNS`."""
    foreign = []
    for snapshot, values in seen.items():
        if any(mark.is_on(values) for mark in marks) or is_ours(snapshot):
            continue
        clones = values["clones"].value
        foreign.append(
            ForeignSnapshot(
                snapshot.full_name,
                holds.hold_tags(snapshot.full_name) if values["userrefs"].value not in ("0", "-") else (),
                tuple(clones.split(",")) if clones not in ("", "-") else (),
            )
        )
    return foreign
