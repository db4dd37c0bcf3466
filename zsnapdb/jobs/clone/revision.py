"""Revisions of a clone: reset and detach make a new set of datasets, which then replaces the current one.

The new revision is made beside the current revision. One change of properties on the anchor makes it the current
revision. Interrupted at any point, the clone has its old or its new data. What is left over is a revision that is not
current; a sweep removes it.
"""

from __future__ import annotations

import re

from zsnapdb.jobs.clone import foreign, properties, volumes
from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.properties import clone_mark
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.zfs import datasets, owned, snapshots


def next_number(info: CloneInfo) -> int:
    """Return the number of a new revision: no dataset of the clone uses it."""
    matches = [re.match(r"r(\d+)", dataset[len(info.top) + 1 :]) for dataset in info.datasets]
    return 1 + max([info.revision, *(int(match.group(1)) for match in matches if match)])


def begin_change(info: CloneInfo) -> None:
    """Mark the clone as changing.

    A clone that was never started keeps its phase `new`, because its files are not yet separate from the source.
    """
    if info.phase is not CopyPhase.NEW:
        datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: CopyPhase.CHANGING})


def undo_change(info: CloneInfo, revision: int) -> None:
    """Remove a new revision after an error. Afterwards the clone is as before, in the phase of `info`."""
    volumes.drop_detaching(info.top, clone_mark(info.name))
    top = f"{info.top}/r{revision}"
    mark = clone_mark(info.name)
    owned.destroy_datasets(owned.members(top, mark), mark)
    datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: info.phase})


def hide_volumes(info: CloneInfo) -> None:
    """Unmount the volumes; they are not mounted again at boot."""
    names = list(info.volumes.values())[::-1]
    datasets.unmount_all(names)
    datasets.set_on_all(names, {"canmount": "noauto"})


def drop_leftovers(info: CloneInfo) -> list[str]:
    """Destroy the revisions that are not current, and return their datasets; the caller holds the clone's lock.

    A revision with commits, or with snapshots that others made, stays, because these need it.
    """
    volumes.drop_detaching(info.top, clone_mark(info.name))
    destroyed: list[str] = []
    for revision in sorted({dataset[len(info.top) + 1 :].partition("/")[0] for dataset in info.leftovers}):
        top = f"{info.top}/{revision}"
        members = [dataset for dataset in info.leftovers if dataset == top or dataset.startswith(top + "/")]
        marked = snapshots.below(top, foreign.COLUMNS)
        if any(values[properties.COMMIT_PROPERTY].is_local for values in marked.values()):
            continue
        mark = clone_mark(info.name)
        if foreign.on_clone(top, info.name, marked):
            continue
        for snapshot, values in marked.items():
            if mark.is_on(values):
                owned.destroy_snapshot(snapshot.full_name, mark)
        owned.destroy_datasets(members, mark)
        destroyed += members
    return destroyed
