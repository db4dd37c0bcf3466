"""Which volume each path of a server lies on, and what is wrong with that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """A mounted file system: where, of what type, and from what (for ZFS: the dataset)."""

    path: str
    fstype: str
    source: str


@dataclass(frozen=True)
class NamedPath:
    """A path the server writes and what says so."""

    what: str
    path: str


@dataclass(frozen=True)
class Placement:
    """Where each path lies, and every objection (none: the set is whole)."""

    volume_of: Mapping[str, str]
    objections: tuple[str, ...]


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount a path lies on: the longest mount path above it, the last mounted if several."""
    best: Mount | None = None
    for mount in mounts:
        root = mount.path.rstrip("/") + "/"
        if (path.rstrip("/") + "/").startswith(root) and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def place(paths: Sequence[NamedPath], mounts: Sequence[Mount], volumes: Mapping[str, str]) -> Placement:
    """Return the placement of the paths on the volumes (role to dataset).

    Objected to: a path on no volume, a mount below a written directory that is no volume, a volume not mounted,
    volumes in several pools.
    """
    roles = {dataset: role for role, dataset in volumes.items()}
    objections: list[str] = []
    placed: dict[str, str] = {}
    pools = sorted({dataset.split("/", 1)[0] for dataset in volumes.values()})
    if len(pools) > 1:
        objections.append(f"the volumes lie in {len(pools)} pools ({', '.join(pools)}); one snapshot command reaches only one")
    mounted = {mount.source for mount in mounts if mount.fstype == "zfs"}
    objections += [f"dataset {dataset} ({role}) is not mounted" for role, dataset in sorted(volumes.items()) if dataset not in mounted]
    for item in paths:
        mount = mount_of(item.path, mounts)
        if mount is None or mount.fstype != "zfs" or mount.source not in roles:
            where = "no mounted file system" if mount is None else f"{mount.fstype} {mount.source} at {mount.path}"
            objections.append(f"{item.what} = {item.path} is on {where}, which is none of the instance's volumes")
            continue
        placed[item.path] = roles[mount.source]
        for below in mounts:
            inside = below.path.startswith(item.path.rstrip("/") + "/")
            if inside and below.source not in roles:
                objections.append(
                    f"{below.fstype} {below.source} is mounted at {below.path}, inside {item.what} = {item.path}, and is none of the instance's volumes"
                )
    return Placement(placed, tuple(dict.fromkeys(objections)))
