"""The datasets of a clone: cloned from a source, mounted, snapshotted, destroyed.

Only what carries the clone's mark, set locally, is destroyed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from zsnapdb.config import ServerSettings
from zsnapdb.jobs.clone.properties import ROLE_PROPERTY
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.jobs.dataset_tuning import kept_properties
from zsnapdb.jobs.server_copy.prepare import PRIVATE_FOLDER, Copy, CopyLayout, lay_out
from zsnapdb.model import Snapshot
from zsnapdb.planning.server_copy.identity import PathMap
from zsnapdb.planning.server_copy.origin import Origin
from zsnapdb.zfs import datasets, owned, snapshots
from zsnapdb.zfs.owned import Mark

DETACHING = "zsnapdb-detach"
"""What the names of snapshots that a detach sends from begin with."""
NOT_MOUNTED = {"mountpoint": "none", "canmount": "off"}


_COLD = ("loose_innodb_buffer_pool_load_at_startup=OFF", "loose_innodb_buffer_pool_dump_at_shutdown=OFF")
"""The source's list of warm pages is not read, which makes a start as slow as that list is long, nor written over."""
_NICE = 10
"""With it a busy clone has about a tenth of a processor while the source wants one (sched(7))."""


def of_clone(server: ServerSettings) -> ServerSettings:
    """Return how a clone's server is started: behind the source's, and with a cold buffer pool, unless the site says otherwise."""
    return server.model_copy(
        update={"options": (*_COLD, *server.options), "nice": _NICE if server.nice is None else server.nice}
    )


def layout_of(origin: Origin, top: str, root: Path) -> CopyLayout:
    """Return where the volumes go below the dataset `top`, mounted at `root`: in the shape they had on the source."""
    return lay_out({role: (place.dataset, place.mountpoint) for role, place in origin.volumes.items()}, top, str(root))


def copy_of(origin: Origin, layout: CopyLayout, root: Path, settings: ServerSettings) -> Copy:
    """Return the files as a copy a clone's server can be started on."""
    pairs = tuple((place.mountpoint, layout.mountpoints[role]) for role, place in origin.volumes.items())
    return Copy(origin.flavour, origin.variables, PathMap(pairs), root, of_clone(settings))


def outer_first(layout: CopyLayout) -> list[tuple[str, str]]:
    """Return role and dataset of each volume, outer datasets before those in them."""
    return sorted(layout.datasets.items(), key=lambda item: len(item[1]))


def clone_volumes(source: CloneSource, layout: CopyLayout, marks: Mapping[str, str], *, canmount: str) -> None:
    """Clone every volume, outermost first, each marked in the command that makes it.

    Mounted at once where `canmount` is on.
    """
    if layout.top not in layout.datasets.values():
        datasets.create(layout.top, {**NOT_MOUNTED, **marks})
    for role, dataset in outer_first(layout):
        snapshot = source.set.snapshots[role]
        options = {
            **kept_properties(snapshot.dataset),
            "mountpoint": layout.mountpoints[role],
            "canmount": canmount,
            "readonly": "off",
        }
        datasets.clone(snapshot.full_name, dataset, {**options, ROLE_PROPERTY: role, **marks})


def mount(volumes: Iterable[str]) -> None:
    """Mount those that are not, in the order given."""
    for dataset in volumes:
        if datasets.properties(dataset, ["mounted"])["mounted"].value != "yes":
            datasets.mount(dataset)


def snapshot(volumes: Mapping[str, str], short: str, properties: Mapping[str, str]) -> dict[str, Snapshot]:
    """Make one snapshot of all volumes in one transaction group and return it by role."""
    names = {role: f"{dataset}@{short}" for role, dataset in volumes.items()}
    pending = snapshots.PendingSnapshots.of(list(names.values()), properties)
    pending.start()
    pending.finish()
    made = snapshots.describe(list(names.values()))
    snapshots.check_one_group(made)
    return dict(zip(names, made, strict=True))


def drop_detaching(anchor: str, mark: Mark) -> None:
    """Destroy the snapshots that a detach sends from and receives, which one that came to nothing leaves.

    Those of datasets without the mark are left alone.
    """
    below = datasets.children(anchor, [mark.name]) if datasets.exists(anchor) else {}
    ours = {dataset for dataset, values in below.items() if mark.is_on(values)}
    for snapshot in snapshots.below(anchor, (mark.name,)) if ours else ():
        if snapshot.dataset in ours and snapshot.name.startswith(f"{DETACHING}-"):
            owned.destroy_named_snapshot(snapshot.full_name, f"{DETACHING}-", mark)


def remove_folders(root: Path) -> None:
    """Remove the private folder, where it lies beside the datasets and not in one, and the folders they were mounted at."""
    private = root / PRIVATE_FOLDER
    if private.is_dir() and not os.path.ismount(root):
        shutil.rmtree(private, ignore_errors=True)
    for folder in (*(root.iterdir() if root.is_dir() else ()), root):
        # Whatever is not an empty folder stays, and is nobody's loss.
        with contextlib.suppress(OSError):
            folder.rmdir()
