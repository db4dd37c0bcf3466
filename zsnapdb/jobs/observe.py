"""Looks at an instance before anything is touched: its server, where its files lie, what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.common import Instance
from zsnapdb.model import Flavour
from zsnapdb.mysql.paths import absolute_tablespaces, with_real_paths, written_paths
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
            found = datasets.properties(dataset, ["type", "encryption"])
        except NotThere as error:
            raise PreflightError(
                f"dataset {dataset} (volume {role} of instance {instance.name}) does not exist", hint="check volumes with `zfs list`"
            ) from error
        kind, encryption = found["type"].value, found["encryption"].value
        if encryption not in ("off", datasets.UNSET):
            raise PreflightError(
                f"dataset {dataset} (volume {role} of instance {instance.name}) is encrypted ({encryption}); this version would store it in the clear",
                hint="natively encrypted datasets need raw streams, which are not supported yet",
            )
        if kind != "filesystem":
            raise PreflightError(
                f"dataset {dataset} (volume {role} of instance {instance.name}) is a {kind}, not a filesystem", hint="name the dataset the files lie on"
            )


def observe(instance: Instance, session: Session) -> Observed:
    """Return what was found. PreflightError with every objection if the instance is not fit for a backup."""
    check_datasets(instance)
    facts = with_real_paths(probe(session))
    _refuse_unrecoverable(facts)
    if instance.settings.lock.strategy == "auto" and not facts.sees_all_tables:
        raise PreflightError(
            f"{instance.address} may not read all tables, so tables of other engines than InnoDB cannot be ruled out",
            hint="grant SELECT ON *.* to the account (configs/grants-*.sql), or force lock.strategy",
        )
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


def _refuse_unrecoverable(facts: ServerFacts) -> None:
    """Raise PreflightError where crash recovery of the files would not give the state the binlog claims."""
    if facts.variables.get("innodb_flush_log_at_trx_commit") == "0":
        raise PreflightError(
            "innodb_flush_log_at_trx_commit = 0: the binlog can be ahead of the tables, so a snapshot may lack transactions it claims to hold",
            hint="set it to 2: no sync per commit either, and a snapshot is then exact",
        )
    if facts.redo_disabled:
        raise PreflightError("the redo log is disabled: files snapshotted now cannot be recovered", hint="ALTER INSTANCE ENABLE INNODB REDO_LOG")
    if facts.is_replica and facts.flavour is Flavour.MYSQL and "OFF" in (facts.variables.get("log_replica_updates"), facts.variables.get("log_slave_updates")):
        raise PreflightError(
            "the server is a replica that does not write what it applies to its own binlog, so a snapshot's position cannot be proved",
            hint="set log_replica_updates = ON, or back up another server",
        )


def _mountpoint(dataset: str, mounts: list[Mount]) -> str:
    return next(mount.path for mount in reversed(mounts) if mount.source == dataset and mount.fstype == "zfs")


def role_of(path: str, observed: Observed, instance: Instance) -> str:
    """Return the role of the volume a server path lies on."""
    mounts = [Mount(point, "zfs", role) for role, point in observed.mountpoints.items()]
    found = mount_of(path, mounts)
    if found is None:
        raise PreflightError(f"{path} lies on no volume of instance {instance.name}")
    return found.source
