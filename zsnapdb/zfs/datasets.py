"""Facts about datasets, and their creation, cloning, changes and unmounting.

Only `zfs/mounting.py` mounts datasets. Only `zfs/destruction.py` destroys datasets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ConsistencyError, ExistsError, NotFound
from zsnapdb.base.patterns import is_dataset_or_snapshot
from zsnapdb.zfs import kernel_facts, libzfs, mounts
from zsnapdb.zfs.command import (
    ZFS,
    NotMountedByZfsError,
    number_in,
    property_rows,
    run,
    run_when_free,
    set_options,
    table,
)

UNSET = "-"
"""The value that `zfs get` prints for a user property that is not set."""


_NOT_MOUNTED = {"mountpoint": "none", "canmount": "off"}
SAFE_MOUNT = {"setuid": "off", "devices": "off"}
"""Options of a dataset with untrusted files. Set-user-id programs and device files in the dataset do not work.

zfsprops(7): `setuid=off` is the mount option nosuid, `devices=off` is nodev.
"""


@dataclass(frozen=True)
class Property:
    """A property's value and its source: local, received, default, inherited from …, or -."""

    value: str
    source: str

    @property
    def is_local(self) -> bool:
        """Whether the property was set on this dataset itself (zfsprops(7)).

        Only a local property describes the dataset itself.
        """
        return self.source == "local"


def exists(dataset: str) -> bool:
    """Whether the dataset, snapshot or bookmark exists.

    If libzfs_core is installed and the name is valid, this function asks the kernel directly and starts no program.
    """
    library = libzfs.load() if is_dataset_or_snapshot(dataset) else None
    known = None if library is None else library.exists(dataset)
    if known is not None:
        return known
    try:
        run([ZFS, "list", "-H", "-o", "name", "-t", "all", dataset])
    except NotFound:
        return False
    return True


def existing(dataset: str) -> str:
    """Return the dataset if it exists, otherwise its nearest existing ancestor. The pool is assumed to exist."""
    while "/" in dataset and not exists(dataset):
        dataset = dataset.rpartition("/")[0]
    return dataset


def properties(dataset: str, names: Sequence[str]) -> dict[str, Property]:
    """Return the named properties of one dataset with exact values (-p).

    Raises NotFound if the dataset does not exist.
    """
    listed = property_rows([ZFS, "get", "-H", "-p", "-o", "property,value,source", ",".join(names), dataset], 3)
    return {name: Property(value, source) for name, value, source in listed}


def properties_of(names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
    """Return the properties `keys` of the named datasets and snapshots, keyed by name. One command reads them.

    Raises NotFound if a dataset or snapshot does not exist.
    """
    return listed_properties([], keys, names)


def listed_properties(
    options: Sequence[str], keys: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, Property]]:
    """Return the values of the properties `keys`, keyed by object. `options` and `names` are arguments of `zfs get`."""
    argv = [ZFS, "get", "-H", "-p", *options, "-o", "name,property,value,source", ",".join(keys), *names]
    by_name: dict[str, dict[str, Property]] = {}
    for name, key, value, source in property_rows(argv, 4):
        by_name.setdefault(name, {})[key] = Property(value, source)
    return by_name


def pools() -> list[str]:
    """Return the names of the imported pools, sorted."""
    known = kernel_facts.pools()
    if known is not None:
        return known
    return [name for (name,) in table(["zpool", "list", "-H", "-o", "name"], 1)]


def alternate_root(pool: str) -> str | None:
    """Return the folder below which an imported pool mounts everything (`zpool import -R`); None if there is none.

    `zfs get mountpoint` shows the path with this folder, but a `mountpoint` is set without it (zpoolprops(7), altroot).
    """
    ((value,),) = table(["zpool", "get", "-H", "-p", "-o", "value", "altroot", pool], 1)
    return value if value.startswith("/") else None


def sync(pool: str) -> None:
    """Wait until the `used` properties include all earlier writes to the pool (zpool-sync(8))."""
    run(["zpool", "sync", pool])


def guids(names: Sequence[str]) -> dict[str, int]:
    """Return the GUIDs of the given datasets, which must be in one pool.

    Raises NotFound if a dataset does not exist.

    If libzfs_core can answer, no program is started.
    """
    library = libzfs.load()
    facts = library.facts(names) if library is not None and names else None
    if facts is not None:
        return {name: facts[name].guid for name in names}
    argv = [ZFS, "get", "guid"]
    return {name: number_in(values["guid"].value, argv) for name, values in properties_of(names, ["guid"]).items()}


def guid(dataset: str) -> int:
    """Return the GUID of a dataset or snapshot."""
    return _number(dataset, "guid")


def _number(dataset: str, key: str) -> int:
    argv = [ZFS, "get", "-H", "-p", "-o", "value", key, dataset]
    return number_in(run(argv).strip(), argv)


def children(dataset: str, names: Sequence[str], depth: int | None = None) -> dict[str, dict[str, Property]]:
    """Return the named properties of the dataset and of every filesystem and volume below it, keyed by dataset name.

    `depth` is the number of levels below the dataset; None means all levels.
    """
    levels = ["-r"] if depth is None else ["-d", str(depth)]
    return listed_properties([*levels, "-t", "filesystem,volume"], names, [dataset])


def create(dataset: str, options: Mapping[str, str]) -> None:
    """Create an unmounted filesystem with the given properties. Raises ExistsError if the filesystem exists.

    Missing parents are created as in `ensure`.
    """
    parent = dataset.rpartition("/")[0]
    if parent:
        ensure(parent)
    run([ZFS, "create", *set_options({**_NOT_MOUNTED, **options}), dataset])


def ensure(dataset: str) -> None:
    """Create a filesystem and its missing parents, all of them unmounted. An existing filesystem is not changed.

    `zfs create -p` would mount the parents at their inherited mount points (zfs-create(8)). An inherited mount point
    can be anywhere, even in a read-only folder.
    """
    if exists(dataset):
        return
    parent = dataset.rpartition("/")[0]
    if parent:
        ensure(parent)
    # Another process may create the filesystem at the same moment.
    with contextlib.suppress(ExistsError):
        run([ZFS, "create", *set_options(_NOT_MOUNTED), dataset])


def clone(snapshot: str, guid: int, dataset: str, options: Mapping[str, str]) -> None:
    """Create `dataset` as a writable clone of the snapshot with this name and GUID.

    The clone is mounted if its properties allow this.

    Raises ConsistencyError if another snapshot now has the name. After ConsistencyError, the caller must destroy
    `dataset`, because it is a clone of the wrong snapshot.
    """
    run([ZFS, "clone", *set_options(options), snapshot, dataset])
    if origin_guid(dataset) != guid:
        raise ConsistencyError(
            f"{snapshot} is another snapshot than a moment ago: somebody renamed or replaced it",
            hint="run the command again",
        )


def origin_guid(dataset: str) -> int | None:
    """Return the GUID of the snapshot that the dataset was cloned from; None if the dataset is not a clone.

    If libzfs_core can answer, no program is started.
    """
    library = libzfs.load()
    known = library.origin_guid(dataset) if library is not None else None
    if known is not None:
        return known
    origin = properties(dataset, ["origin"])["origin"].value
    return None if origin in (UNSET, "") else guid(origin)


def origin_guids(names: Sequence[str]) -> list[int]:
    """Return the GUIDs of the snapshots that the datasets were cloned from, without datasets that are no clones."""
    origins = [values["origin"].value for values in properties_of(names, ["origin"]).values()]
    snapshots = [origin for origin in origins if origin not in (UNSET, "")]
    return list(guids(snapshots).values()) if snapshots else []


def promote(dataset: str) -> None:
    """Transfer the clone's origin snapshot and all earlier snapshots to the clone (zfs-promote(8)).

    The dataset that had the snapshot becomes a clone of that snapshot. Raises CommandError if a snapshot name is taken.
    """
    run([ZFS, "promote", dataset])


def set_properties(dataset: str, values: Mapping[str, str]) -> None:
    """Set properties on one dataset with one command."""
    set_on_all([dataset], values)


def set_on_all(names: Sequence[str], values: Mapping[str, str]) -> None:
    """Set the same properties on each of the datasets with one command."""
    if values and names:
        run([ZFS, "set", *[f"{key}={value}" for key, value in values.items()], *names])


def set_together(values: Mapping[str, Mapping[str, str]]) -> bool:
    """Set user properties on datasets of one pool in one transaction group: on all of them or on none.

    Return whether the properties are set. This needs root, libzfs_core, and a ZFS module with zfs.sync.set_prop
    (zfs-program(8)).
    """
    library = libzfs.load()
    return library is not None and library.set_each(values)


def inherit(datasets: Sequence[str], names: Sequence[str]) -> None:
    """Remove the local values of the given properties from each dataset. All properties must be inheritable."""
    for name in names if datasets else ():
        run([ZFS, "inherit", name, *datasets])


def reset(dataset: str, name: str) -> None:
    """Remove the local value of a property that is not inheritable. The received value or the default then applies.

    `zfs inherit` without -S refuses such a property (zfs_do_inherit in cmd/zfs/zfs_main.c).
    """
    run([ZFS, "inherit", "-S", name, dataset])


def rename(dataset: str, new: str) -> None:
    """Rename a filesystem with all its children.

    Mounted filesystems stay mounted. If a mount point is inherited, it changes with the name.
    """
    run_when_free([ZFS, "rename", dataset, new])


def available(dataset: str) -> int:
    """Return the number of bytes that can still be written below the dataset."""
    return _number(dataset, "available")


def bookmarks_below(dataset: str) -> list[str]:
    """Return the full names of all bookmarks on the dataset and on the datasets below it, sorted."""
    return sorted(name for (name,) in table([ZFS, "list", "-H", "-r", "-t", "bookmark", "-o", "name", dataset], 1))


def unmount(dataset: str) -> None:
    """Unmount a filesystem. Do nothing if it is not mounted."""
    unmount_all([dataset])


def unmount_all(names: Sequence[str]) -> None:
    """Unmount the given filesystems in the given order. Skip filesystems that are not mounted."""
    here = mounts.mounted_datasets()
    for name in names:
        if name in here:
            try:
                run_when_free([ZFS, "unmount", name])
            except NotMountedByZfsError:
                # `zfs unmount` refuses filesystems with mountpoint=legacy.
                entries = [entry for entry in mounts.mounted() if (entry.fstype, entry.source) == ("zfs", name)]
                for entry in reversed(entries):
                    run_when_free(["umount", "--no-canonicalize", "--", entry.path], dataset=name)
