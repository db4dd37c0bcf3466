"""Revisions of a clone: reset and detach make a new set of datasets, which then replaces the current one.

The new revision is made beside the current revision. One change of properties on the anchor makes it the current
revision. Interrupted at any point, the clone has its old or its new data. What is left over is a revision that is not
current; a sweep removes it.
"""

from __future__ import annotations

import re

from zsnapdb.jobs.clone import properties, volumes
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.properties import clone_mark
from zsnapdb.jobs.copies import properties as copy_properties
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot
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


def mend(info: CloneInfo) -> list[ForeignSnapshot]:
    """Finish a reset or detach that was interrupted before its new data counted: the clone has its old data.

    The caller holds the clone's lock. The answer is that of `drop_leftovers`.
    """
    kept = drop_leftovers(info)
    if info.phase is CopyPhase.CHANGING:
        datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
    return kept


def drop_leftovers(info: CloneInfo) -> list[ForeignSnapshot]:
    """Destroy the revisions that are not current; the caller holds the clone's lock.

    A revision with commits, or with snapshots that others made, stays, because these need it. Return the latter.
    """
    seen = snapshots.below(info.top, volumes.COLUMNS)
    if any(volumes.is_detaching(snapshot.name) for snapshot in seen):
        volumes.drop_detaching(info.top, clone_mark(info.name))
        seen = snapshots.below(info.top, volumes.COLUMNS)
    kept: list[ForeignSnapshot] = []
    for revision in sorted({dataset[len(info.top) + 1 :].partition("/")[0] for dataset in info.leftovers}):
        top = f"{info.top}/{revision}"
        members = [dataset for dataset in info.leftovers if dataset == top or dataset.startswith(top + "/")]
        marked = {
            snapshot: values
            for snapshot, values in seen.items()
            if snapshot.dataset == top or snapshot.dataset.startswith(top + "/")
        }
        of_others = volumes.on_clone(top, info.name, marked)
        kept += of_others
        if of_others or any(values[properties.COMMIT_PROPERTY].is_local for values in marked.values()):
            continue
        mark = clone_mark(info.name)
        for snapshot, values in marked.items():
            if mark.is_on(values):
                owned.destroy_snapshot(snapshot.full_name, mark)
        owned.destroy_datasets(members, mark)
    return kept
