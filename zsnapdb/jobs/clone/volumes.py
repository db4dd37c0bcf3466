"""The datasets of a clone: clones them from a source, mounts them, snapshots them, removes their folders.

A dataset is destroyed only if it carries the clone's mark, set locally.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from zsnapdb.base import server_files
from zsnapdb.base.model import Snapshot
from zsnapdb.config.settings import CloneSettings, ServerSettings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY, COMMIT_PROPERTY, ROLE_PROPERTY, clone_mark
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.jobs.host.dataset_tuning import volume_facts
from zsnapdb.jobs.server_copy.prepare import Copy, CopyLayout, lay_out
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.dataset_properties import data_values, explicit_values
from zsnapdb.planning.foreign_snapshots import ForeignSnapshot, listed, objection
from zsnapdb.planning.server_copy.identity import PathMap
from zsnapdb.planning.server_copy.origin import Origin
from zsnapdb.zfs import datasets, foreign, mounting, owned, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.owned import Mark

DETACHING = "zsnapdb-detach"
"""Prefix of the names of the snapshots that a detach sends."""

_COLD = ("loose_innodb_buffer_pool_load_at_startup=OFF", "loose_innodb_buffer_pool_dump_at_shutdown=OFF")
"""The server neither reads the source's list of buffer pool pages (a long list makes a start slow) nor writes it."""
_NICE = 10
"""A busy clone gets about a tenth of a processor while the source needs that processor (sched(7))."""


def settings_of_clone(server: ServerSettings, clones: CloneSettings) -> ServerSettings:
    """Return the settings of a clone's server: a lower priority than the source, a cold buffer pool, its account.

    The configuration of the instance can override the first two.
    """
    return server.model_copy(
        update={
            "options": (*_COLD, *server.options),
            "nice": _NICE if server.nice is None else server.nice,
            "user": clones.server_user or server.user,
        }
    )


def layout_of(origin: Origin, top: str, root: Path) -> CopyLayout:
    """Return where the volumes go: below the dataset `top`, mounted at `root`, nested as on the source."""
    return lay_out({role: (place.dataset, place.mountpoint) for role, place in origin.volumes.items()}, top, str(root))


def copy_of(origin: Origin, layout: CopyLayout, root: Path, settings: ServerSettings, clones: CloneSettings) -> Copy:
    """Return the copy on which the server of a clone can be started."""
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
    """Return role and dataset of each volume, outer datasets before inner datasets."""
    return sorted(layout.datasets.items(), key=lambda item: len(item[1]))


def clone_volumes(source: CloneSource, layout: CopyLayout, marks: Mapping[str, str], quota: int = 0) -> None:
    """Clone every volume, outer datasets first; the command that makes a dataset also marks it. None is mounted.

    All of them together may have `quota` bytes of their own (0: no limit). ConsistencyError if a snapshot was replaced.
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
            # With `on`, `zfs clone` itself would mount it (zfs-clone(8)), through whatever links lead there.
            "canmount": "noauto",
        }
        if dataset == layout.top:
            options |= limit
        datasets.clone(snapshot.full_name, snapshot.guid, dataset, {**options, ROLE_PROPERTY: role, **marks})


def mount(volumes: Iterable[str]) -> None:
    """Mount the datasets that are not mounted. The errors are those of `mounting.mount_all`."""
    mounting.mount_all(volumes)


def mount_for_good(volumes: Iterable[str]) -> None:
    """Mount the datasets that are not mounted. Afterwards they are also mounted after a reboot of the host."""
    names = list(volumes)
    mount(names)
    datasets.set_on_all(names, {"canmount": "on"})


def snapshot(volumes: Mapping[str, str], short: str, properties: Mapping[str, str]) -> dict[str, Snapshot]:
    """Snapshot all volumes in one transaction group, and return the snapshots by role."""
    names = {role: f"{dataset}@{short}" for role, dataset in volumes.items()}
    pending = snapshots.PendingSnapshots.of(list(names.values()), properties)
    pending.start()
    pending.finish()
    made = snapshots.describe(list(names.values()))
    snapshots.check_one_group(made)
    return dict(zip(names, made, strict=True))


def is_detaching(snapshot: str) -> bool:
    """Whether a detach made the snapshot of this short name."""
    return snapshot.startswith(f"{DETACHING}-")


def drop_detaching(anchor: str, mark: Mark) -> None:
    """Destroy the snapshots that an interrupted or failed detach left.

    Snapshots of datasets without the mark stay.
    """
    if not datasets.exists(anchor) or not any(
        is_detaching(name.partition("@")[2]) for name in snapshots.names_below(anchor)
    ):
        return
    below = datasets.children(anchor, [mark.name])
    ours = {dataset for dataset, values in below.items() if mark.is_on(values)}
    for snapshot in snapshots.below(anchor, (mark.name,)) if ours else ():
        if snapshot.dataset in ours and is_detaching(snapshot.name):
            owned.destroy_named_snapshot(snapshot.full_name, f"{DETACHING}-", mark)


def remove_folders(root: Path) -> None:
    """Remove the empty mount folders, and the private folder unless it lies in a mounted dataset."""
    private = root / PRIVATE_FOLDER
    if private.is_dir() and not os.path.ismount(root):
        server_files.remove_tree(private)
    for folder in (*(root.iterdir() if root.is_dir() else ()), root):
        # Anything but an empty folder stays.
        with contextlib.suppress(OSError):
            folder.rmdir()


COLUMNS = (CLONE_PROPERTY, COMMIT_PROPERTY, *foreign.COLUMNS)
"""What is read of each snapshot of a clone, to know whose it is."""
SeenSnapshots = Mapping[Snapshot, dict[str, Property]]
"""Snapshots with properties of theirs."""


def on_clone(top: str, name: str, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots that others made on `top`, a dataset of the clone, and on the datasets below it.

    `seen` are all snapshots there, with `COLUMNS` (None: they are read here).
    """
    marks = (clone_mark(name), Mark(COMMIT_PROPERTY))
    if seen is None:
        return foreign.foreign_below(top, marks, _is_ours)
    return foreign.among(seen, marks, _is_ours)


def _is_ours(snapshot: Snapshot) -> bool:
    return is_detaching(snapshot.name)


def refuse(top: str, name: str, *, may_go: bool, seen: SeenSnapshots | None = None) -> list[ForeignSnapshot]:
    """Return the snapshots that others made on the clone and that go with it.

    PreflightError, which says whose they are and what holds them, if they must stay. Nothing is changed. `seen` as in
    `on_clone`.
    """
    snapshots = on_clone(top, name, seen)
    error = objection(f"clone {name}", snapshots, may_go=may_go)
    if error is not None:
        raise error
    return snapshots


def warn_of_kept(kept: Sequence[ForeignSnapshot], name: str, events: Events) -> None:
    """Warn that these snapshots of others keep the data that the clone had before it got other data."""
    if kept:
        events.warn(
            f"the data of before stays in the pool, because others made snapshots of clone {name}: {listed(kept)};"
            " `zsnapdb reap --with-foreign-snapshots` removes both"
        )


def let_go(snapshots: Sequence[ForeignSnapshot], name: str) -> None:
    """Destroy the snapshots. NotOursError, and nothing is destroyed, unless they lie on datasets of the clone."""
    owned.destroy_snapshots_on([snapshot.name for snapshot in snapshots], clone_mark(name))
