"""Functions for the datasets of a clone: clone, mount and snapshot them, and remove their mount folders.

A dataset is destroyed only if it has the mark of the clone in a local property. Reset and detach create a new revision
of the datasets next to the current revision. A single change of properties on the anchor makes the new revision the
current one. If the process is interrupted, the clone has either its old or its new data. A sweep removes the other
revision.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.domain_types import Snapshot
from zsnapdb.config.settings import CloneSettings, ServerSettings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.clone import clone_info
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, COMMIT_PROPERTY, ROLE_PROPERTY, CloneInfo, clone_mark
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.jobs.dataset_copies import properties as copy_properties
from zsnapdb.jobs.dataset_copies.catalogue import snapshot_together
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.dataset_tuning import volume_facts
from zsnapdb.jobs.host.server_copy import Copy, CopyLayout, lay_out
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.dataset_property_classes import data_values, explicit_values
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot, listing, objection
from zsnapdb.planning.server_copy.copy_options import PathMap
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.zfs import datasets, destruction, mounting, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.destruction import Mark

DETACHING = "zsnapdb-detach"
"""The name prefix of the snapshots that a detach creates."""
_COLD = ("loose_innodb_buffer_pool_load_at_startup=OFF", "loose_innodb_buffer_pool_dump_at_shutdown=OFF")
"""Options that prevent a server from loading and saving the list of its buffer pool pages.

A long list from the source would slow down the start.
"""
_NICE = 10
"""The nice value of clones' servers.

If the source needs a processor, a busy clone gets about a tenth of it (sched(7)).
"""


def settings_of_clone(server: ServerSettings, clones: CloneSettings) -> ServerSettings:
    """Return the settings of a clone's server: a lower priority than the source, a cold buffer pool, and the account.

    The instance's configuration can override the priority and the buffer pool options.
    """
    return server.model_copy(
        update={
            "options": (*_COLD, *server.options),
            "nice": _NICE if server.nice is None else server.nice,
            "user": clones.server_user or server.user,
        }
    )


def layout_of(origin: SourceServer, top: str, root: Path) -> CopyLayout:
    """Return the layout of the volumes below the dataset `top`, mounted at `root`, and nested as on the source."""
    return lay_out({role: (place.dataset, place.mountpoint) for role, place in origin.volumes.items()}, top, str(root))


def copy_of(
    origin: SourceServer, layout: CopyLayout, root: Path, settings: ServerSettings, clones: CloneSettings
) -> Copy:
    """Return the copy on which the server of a clone runs."""
    pairs = tuple((place.mountpoint, layout.mountpoints[role]) for role, place in origin.volumes.items())
    own = settings_of_clone(settings, clones)
    return Copy(
        origin.flavour,
        origin.version,
        origin.variables,
        PathMap(pairs),
        root,
        own,
        origin.key_files,
        plugins=origin.plugins,
        zone=origin.zone,
    )


def outer_first(layout: CopyLayout) -> list[tuple[str, str]]:
    """Return the role and dataset of each volume, parent datasets first."""
    return sorted(layout.datasets.items(), key=lambda item: len(item[1]))


def clone_volumes(source: CloneSource, layout: CopyLayout, marks: Mapping[str, str], quota: int = 0) -> None:
    """Clone and mark every volume with one command each, parent datasets first. No volume is mounted.

    `quota` limits the own data of all volumes together, in bytes; 0 means no limit.

    Raises:
        ConsistencyError: a snapshot was replaced.
    """
    limit = {"quota": str(quota)} if quota else {}
    if layout.top not in layout.datasets.values():
        datasets.create(layout.top, {**marks, **limit})
    tuned = volume_facts(source.set.snapshots[role].dataset for role in layout.datasets)
    for role, dataset in outer_first(layout):
        snapshot = source.set.snapshots[role]
        options = {
            **data_values(tuned[snapshot.dataset].properties),
            **explicit_values(),
            "mountpoint": layout.mountpoints[role],
            # With canmount=on, `zfs clone` itself would mount the dataset (zfs-clone(8)) and follow links in the path.
            "canmount": "noauto",
        }
        if dataset == layout.top:
            options |= limit
        datasets.clone(snapshot.full_name, snapshot.guid, dataset, {**options, ROLE_PROPERTY: role, **marks})


def mount(volumes: Iterable[str]) -> None:
    """Mount the datasets that are not mounted. Raises the errors of `mounting.mount_all`."""
    mounting.mount_all(volumes)


def mount_for_good(volumes: Iterable[str]) -> None:
    """Mount the datasets that are not mounted, and enable mounting at each boot."""
    names = list(volumes)
    mount(names)
    datasets.set_on_all(names, {"canmount": "on"})


def snapshot(volumes: Mapping[str, str], short: str, properties: Mapping[str, str]) -> dict[str, Snapshot]:
    """Snapshot all volumes in one transaction group, and return the snapshots by role."""
    made = snapshot_together([f"{dataset}@{short}" for dataset in volumes.values()], properties)
    return dict(zip(volumes, made, strict=True))


def is_detaching(snapshot: str) -> bool:
    """Return whether a detach created the snapshot with the given short name."""
    return snapshot.startswith(f"{DETACHING}-")


def drop_detaching(anchor: str, mark: Mark) -> None:
    """Destroy the snapshots of an interrupted or failed detach.

    Snapshots on datasets without the clone's mark are kept.
    """
    if not datasets.exists(anchor) or not any(
        is_detaching(name.partition("@")[2]) for name in snapshots.names_below(anchor)
    ):
        return
    below = datasets.children(anchor, [mark.name])
    ours = {dataset for dataset, values in below.items() if mark.is_on(values)}
    for snapshot in snapshots.below(anchor, (mark.name,)) if ours else ():
        if snapshot.dataset in ours and is_detaching(snapshot.name):
            destruction.destroy_named_snapshot(snapshot.full_name, f"{DETACHING}-", mark)


def remove_folders(root: Path) -> None:
    """Remove the empty mount folders, and the private folder unless it is in a mounted dataset."""
    private = root / PRIVATE_FOLDER
    if private.is_dir() and not os.path.ismount(root):
        safe_open.remove_tree(private)
    for folder in (*(root.iterdir() if root.is_dir() else ()), root):
        # `rmdir` removes only an empty folder.
        with contextlib.suppress(OSError):
            folder.rmdir()


COLUMNS = (CLONE_PROPERTY, COMMIT_PROPERTY, *destruction.COLUMNS)
"""The properties that show who created a snapshot of a clone."""
SeenSnapshots = Mapping[Snapshot, dict[str, Property]]
"""Snapshots with their properties."""


def find_foreign_snapshots(top: str, name: str, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots that other programs created on the clone's dataset `top` and on the datasets below it.

    `seen` contains all snapshots of these datasets, with the properties `COLUMNS`. If `seen` is None, this function
    reads the snapshots.
    """
    marks = (clone_mark(name), Mark(COMMIT_PROPERTY))
    if seen is None:
        return destruction.foreign_below(top, marks, _is_ours)
    return destruction.foreign_among(seen, marks, _is_ours)


def _is_ours(snapshot: Snapshot) -> bool:
    return is_detaching(snapshot.name)


def refuse(top: str, name: str, *, may_go: bool, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots of other programs that will be destroyed with the clone; change nothing.

    For `seen`, see `find_foreign_snapshots`.

    Raises:
        PreflightError: the snapshots must not be destroyed; the message says which programs created or hold them.
    """
    snapshots = find_foreign_snapshots(top, name, seen)
    error = objection(f"clone {name}", snapshots, may_go=may_go)
    if error is not None:
        raise error
    return snapshots


def warn_of_kept(kept: Sequence[ForeignSnapshot], name: str, events: Events) -> None:
    """Warn that the clone's former data stays, because other programs created the given snapshots of it."""
    if kept:
        events.warn(
            f"the former data stays in the pool, because other programs made snapshots of clone {name}:"
            f" {listing(kept)};"
            " `zsnapdb reap --with-foreign-snapshots` removes both"
        )


def destroy_snapshots(snapshots: Sequence[ForeignSnapshot], name: str) -> None:
    """Destroy the snapshots.

    Raises:
        NotOursError: a snapshot is not on a dataset of the clone; nothing was destroyed.
    """
    destruction.destroy_snapshots_on([snapshot.name for snapshot in snapshots], clone_mark(name))


def next_number(info: CloneInfo) -> int:
    """Return the number of a new revision that no dataset of the clone uses."""
    matches = [re.match(r"r([0-9]+)", dataset[len(info.top) + 1 :]) for dataset in info.datasets]
    return 1 + max([info.revision, *(int(match.group(1)) for match in matches if match)])


def begin_change(info: CloneInfo) -> None:
    """Set the phase of the clone to `changing`.

    A clone that was never started keeps its phase `new`, because its files are not yet separate from the source.
    """
    if info.phase is not CopyPhase.NEW:
        datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: CopyPhase.CHANGING})


def undo_change(info: CloneInfo, revision: int) -> None:
    """Remove a new revision after an error. The clone keeps its old data, and its phase is again the one in `info`."""
    drop_detaching(info.top, clone_mark(info.name))
    top = f"{info.top}/r{revision}"
    mark = clone_mark(info.name)
    destruction.destroy_datasets(destruction.members(top, mark), mark)
    datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: info.phase})


def hide_volumes(info: CloneInfo) -> None:
    """Unmount the volumes, and prevent mounting them at boot."""
    names = list(info.volumes.values())[::-1]
    datasets.unmount_all(names)
    datasets.set_on_all(names, {"canmount": "noauto"})


def revert_interrupted_change(info: CloneInfo) -> list[ForeignSnapshot]:
    """Undo a reset or detach that was interrupted before its new data became current. The clone keeps its old data.

    The caller must hold the clone's lock. Return the result of `drop_leftovers`.
    """
    kept = drop_leftovers(info)
    if info.phase is CopyPhase.CHANGING:
        datasets.set_properties(info.top, {copy_properties.PHASE_PROPERTY: CopyPhase.READY})
    return kept


def drop_leftovers(info: CloneInfo) -> list[ForeignSnapshot]:
    """Destroy the revisions that are not current. The caller must hold the clone's lock.

    A revision stays if it has commits, or snapshots that other programs created. Return the snapshots of other
    programs.
    """
    seen = snapshots.below(info.top, COLUMNS)
    if any(is_detaching(snapshot.name) for snapshot in seen):
        drop_detaching(info.top, clone_mark(info.name))
        seen = snapshots.below(info.top, COLUMNS)
    kept: list[ForeignSnapshot] = []
    for revision in sorted({dataset[len(info.top) + 1 :].partition("/")[0] for dataset in info.leftovers}):
        top = f"{info.top}/{revision}"
        members = [dataset for dataset in info.leftovers if dataset == top or dataset.startswith(top + "/")]
        marked = {
            snapshot: values
            for snapshot, values in seen.items()
            if snapshot.dataset == top or snapshot.dataset.startswith(top + "/")
        }
        of_others = find_foreign_snapshots(top, info.name, marked)
        kept += of_others
        if of_others or any(values[clone_info.COMMIT_PROPERTY].is_local for values in marked.values()):
            continue
        mark = clone_mark(info.name)
        for snapshot, values in marked.items():
            if mark.is_on(values):
                destruction.destroy_snapshot(snapshot.full_name, mark)
        destruction.destroy_datasets(members, mark)
    return kept
