"""Finds the snapshots that others made on datasets of ours, for example by a recursive snapshot of the pool."""

from __future__ import annotations

from collections.abc import Callable, Collection

from zsnapdb.base.model import Snapshot
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.owned import Mark


def below(top: str, marks: Collection[Mark], is_ours: Callable[[Snapshot], bool]) -> list[ForeignSnapshot]:
    """Return the snapshots of `top` and of the datasets below it that others made, oldest first.

    A snapshot is ours if it carries one of the marks, set locally, or if `is_ours` says so. Empty if `top` does not
    exist.
    """
    if not datasets.exists(top):
        return []
    names = [mark.name for mark in marks]
    foreign = []
    for snapshot, values in snapshots.below(top, (*names, "userrefs", "clones")).items():
        if any(mark.is_on(values) for mark in marks) or is_ours(snapshot):
            continue
        clones = values["clones"].value
        foreign.append(
            ForeignSnapshot(
                snapshot.full_name,
                snapshots.hold_tags(snapshot.full_name) if values["userrefs"].value not in ("0", "-") else (),
                tuple(clones.split(",")) if clones not in ("", "-") else (),
            )
        )
    return foreign
