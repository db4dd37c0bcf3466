"""Search for snapshots of other programs on zsnapdb's datasets, for example from a recursive snapshot of the pool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zsnapdb.base.domain_types import Snapshot
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, holds, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.destruction import Mark

COLUMNS = ("userrefs", "clones")
"""Properties that are read of each snapshot in addition to its marks."""


def foreign_below(top: str, marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]) -> list[ForeignSnapshot]:
    """Return the snapshots of `top` and of the datasets below it that other programs created, oldest first.

    zsnapdb owns a snapshot if it carries one of the marks, set locally, or if `is_ours` returns true. Empty if `top`
    does not exist.
    """
    if not datasets.exists(top):
        return []
    return among(snapshots.below(top, (*(mark.name for mark in marks), *COLUMNS)), marks, is_ours)


def among(
    seen: Mapping[Snapshot, dict[str, Property]], marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]
) -> list[ForeignSnapshot]:
    """Return the snapshots among `seen` that other programs created. `seen` has the marks and `COLUMNS` of each."""
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
