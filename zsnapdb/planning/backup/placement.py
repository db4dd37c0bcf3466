"""Finds the volume of each path to which a server writes, and the problems with these paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import pool_of


@dataclass(frozen=True)
class MountedFilesystem:
    """A mounted file system, with its mount point, its type and its source (for ZFS: the dataset)."""

    path: str
    fstype: str
    source: str
    is_bind: bool = False


@dataclass(frozen=True)
class NamedPath:
    """A path that the server writes to, and the setting that contains the path."""

    what: str
    path: str


@dataclass(frozen=True)
class Placement:
    """The volume of each path, and all objections. If there are no objections, the volumes are complete."""

    volume_of: Mapping[str, str]
    objections: tuple[str, ...]


def mount_of(path: str, mounts: Sequence[MountedFilesystem]) -> MountedFilesystem | None:
    """Return the mount with the longest mount point that contains a path; the last mount if there are several."""
    best: MountedFilesystem | None = None
    for mount in mounts:
        root = mount.path.rstrip("/") + "/"
        if (path.rstrip("/") + "/").startswith(root) and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def mount_points(
    volumes: Mapping[str, str], mounts: Sequence[MountedFilesystem], paths: Sequence[NamedPath]
) -> dict[str, str]:
    """Return the mount point of each volume (role to dataset).

    A dataset may be mounted several times. If the server uses one of the mounts, its mount point is returned, otherwise
    the mount point of the last mount. A bind mount of the dataset's root, for example for a container, looks like any
    other mount.
    """
    whole = [mount for mount in mounts if mount.fstype == "zfs" and not mount.is_bind]
    used = [mount_of(item.path, mounts) for item in paths]
    found = {mount.source: mount.path for mount in (*whole, *(each for each in used if each in whole and each))}
    return {role: found[dataset] for role, dataset in volumes.items()}


def place(paths: Sequence[NamedPath], mounts: Sequence[MountedFilesystem], volumes: Mapping[str, str]) -> Placement:
    """Return the placement of the paths on the volumes (role to dataset).

    There is an objection if a path is on no volume. A mount below a directory to which the server writes is also an
    objection, unless the mount is a volume. There is also an objection if a volume is not mounted, or if the volumes
    are in several pools.
    """
    roles = {dataset: role for role, dataset in volumes.items()}
    objections: list[str] = []
    placed: dict[str, str] = {}
    pools = sorted({pool_of(dataset) for dataset in volumes.values()})
    if len(pools) > 1:
        objections.append(
            f"the volumes lie in {len(pools)} pools ({', '.join(pools)}); one snapshot command reaches only one"
        )
    mounted = {mount.source for mount in mounts if mount.fstype == "zfs" and not mount.is_bind}
    objections += [
        f"dataset {dataset} ({role}) is not mounted"
        for role, dataset in sorted(volumes.items())
        if dataset not in mounted
    ]
    for item in paths:
        mount = mount_of(item.path, mounts)
        if mount is None or mount.fstype != "zfs" or mount.source not in roles:
            where = "no mounted file system" if mount is None else f"{mount.fstype} {mount.source} at {mount.path}"
            objections.append(f"{item.what} = {item.path} is on {where}, which is not a volume of the instance")
            continue
        if mount.is_bind:
            objections.append(
                f"{item.what} = {item.path} is reached through {mount.path}, a bind mount of a folder of {mount.source}"
            )
            continue
        placed[item.path] = roles[mount.source]
        for below in mounts:
            inside = below.path.startswith(item.path.rstrip("/") + "/")
            if inside and below.source not in roles:
                objections.append(
                    f"{below.fstype} {below.source} is mounted at {below.path}, inside {item.what} = {item.path}, and"
                    " is not a volume of the instance"
                )
    return Placement(placed, tuple(dict.fromkeys(objections)))


@dataclass(frozen=True)
class Discovered:
    """The datasets of the server's paths by role, and the objections to using them as volumes."""

    volumes: Mapping[str, str]
    objections: tuple[str, ...]


def discover(paths: Sequence[NamedPath], mounts: Sequence[MountedFilesystem], datadir: str) -> Discovered:
    """Return the datasets of the paths as volumes. The same server always gets the same roles.

    The dataset of the data directory is `data`; a dataset above `data` is `parent`. Any other dataset gets the last
    component of its name as its role, or its whole name if a different dataset has that role. A path outside ZFS is an
    objection.
    """
    path_on: dict[str, NamedPath] = {}
    objections = []
    for item in paths:
        mount = mount_of(item.path, mounts)
        if mount is None or mount.fstype != "zfs":
            where = "no mounted file system" if mount is None else f"{mount.fstype} {mount.source} at {mount.path}"
            objections.append(f"{item.what} = {item.path} is on {where}, which is not a ZFS dataset")
        else:
            path_on.setdefault(mount.source, item)
    home = mount_of(datadir, mounts)
    data = home.source if home is not None and home.source in path_on else None
    roles: dict[str, str] = {}
    for dataset in sorted(path_on):
        if dataset == data:
            roles[dataset] = "data"
        elif data is not None and data.startswith(dataset + "/") and "parent" not in roles.values():
            roles[dataset] = "parent"
    for dataset in sorted(set(path_on) - set(roles)):
        names = (
            _role_name(dataset.rpartition("/")[2]),
            _role_name(dataset),
            *(f"volume-{number}" for number in range(1, len(path_on) + 1)),
        )
        roles[dataset] = next(name for name in names if name not in roles.values())
    return Discovered({role: dataset for dataset, role in roles.items()}, tuple(dict.fromkeys(objections)))


def _role_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).strip("-_")[-32:].lstrip("-_") or "volume"
