"""Looks at an instance before anything is touched: its server, where its files lie, what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.common import Instance
from zsnapdb.mysql.paths import absolute_tablespaces, written_paths
from zsnapdb.mysql.probe import ServerFacts, probe
from zsnapdb.mysql.session import Session
from zsnapdb.planning.placement import Mount, NamedPath, mount_of, place
from zsnapdb.planning.strategy import Choice, choose
from zsnapdb.zfs import datasets
from zsnapdb.zfs.mounts import mounted

KEPT_PROPERTIES = ("recordsize", "compression", "atime", "xattr", "primarycache", "logbias", "sync", "redundant_metadata", "checksum", "dnodesize")
"""Properties that a restored dataset gets back. What belongs to a host (mountpoint, quota, reservation) is left out."""


@dataclass(frozen=True)
class Observed:
    """What was found: the server, where each volume is mounted, the lock it needs, warnings."""

    facts: ServerFacts
    mountpoints: dict[str, str]
    choice: Choice
    warnings: tuple[str, ...]


def check_datasets(instance: Instance) -> None:
    """Raise PreflightError unless every configured volume exists and is a filesystem."""
    for role, dataset in instance.settings.volumes.items():
        try:
            kind = datasets.properties(dataset, ["type"])["type"].value
        except NotThere as error:
            raise PreflightError(
                f"dataset {dataset} (volume {role} of instance {instance.name}) does not exist", hint="check volumes with `zfs list`"
            ) from error
        if kind != "filesystem":
            raise PreflightError(
                f"dataset {dataset} (volume {role} of instance {instance.name}) is a {kind}, not a filesystem", hint="name the dataset the files lie on"
            )


def observe(instance: Instance, session: Session) -> Observed:
    """Return what was found. PreflightError with every objection if the instance is not fit for a backup."""
    check_datasets(instance)
    facts = probe(session)
    choice = choose(facts.flavour, facts.engines, instance.settings.lock.strategy)
    mounts = [Mount(entry.path, entry.fstype, entry.source) for entry in mounted()]
    paths = [NamedPath(path.what, path.path) for path in written_paths(facts)]
    placement = place(paths, mounts, instance.settings.volumes)
    if placement.objections:
        raise PreflightError(
            f"instance {instance.name} cannot be snapshotted as one: " + "; ".join(placement.objections),
            hint="name every dataset the server writes to under volumes, in one pool, or move the files",
        )
    mountpoints = {role: _mountpoint(dataset, mounts) for role, dataset in instance.settings.volumes.items()}
    warnings = []
    strays = absolute_tablespaces(facts)
    if strays:
        warnings.append(f"{len(strays)} tablespace(s) have absolute paths ({strays[0]}): a clone beside the source will be refused")
    if not facts.has_binlog:
        warnings.append("the binlog is off: backups have no position and no point in time between them can be restored")
    return Observed(facts, mountpoints, choice, tuple(warnings))


def _mountpoint(dataset: str, mounts: list[Mount]) -> str:
    return next(mount.path for mount in reversed(mounts) if mount.source == dataset and mount.fstype == "zfs")


def role_of(path: str, observed: Observed, instance: Instance) -> str:
    """Return the role of the volume a server path lies on."""
    mounts = [Mount(point, "zfs", role) for role, point in observed.mountpoints.items()]
    found = mount_of(path, mounts)
    if found is None:
        raise PreflightError(f"{path} lies on no volume of instance {instance.name}")
    return found.source
