"""Checks of an instance before any change: its server, the location of its files, and obstacles to a backup."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb import hooks
from zsnapdb.base.domain_types import Position, pool_of
from zsnapdb.base.errors import HookError, PreflightError, ZsnapdbError
from zsnapdb.hooks import OnFailure, When
from zsnapdb.jobs.backup import replica_applier
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import dataset_use_checks, startup_requirements
from zsnapdb.mysql import locks
from zsnapdb.mysql.binlog.binlog_files import key_of, open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.tail import index_entries
from zsnapdb.mysql.probe import probe, published_position
from zsnapdb.mysql.process.discovery import process_of
from zsnapdb.mysql.process.time_zone import server_zone
from zsnapdb.mysql.process.written_paths import (
    absolute_tablespaces,
    data_file_blocks,
    fixed_links,
    keyring_paths,
    needed_by_appliers,
    with_real_paths,
    written_paths,
)
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import set_variables
from zsnapdb.planning.backup.dataset_encryption import judge_sending
from zsnapdb.planning.backup.fitness import (
    BlockSizes,
    DatasetSpace,
    FitnessFinding,
    judge_blocks,
    judge_lock,
    judge_placement,
    judge_server,
    judge_space,
    judge_state,
    objection,
    ok,
    repairs_torn_pages,
    unfit,
    warning,
    warnings,
)
from zsnapdb.planning.backup.fitness import judge as judge_view
from zsnapdb.planning.backup.lock_strategy import AUTO, LockChoice, choose
from zsnapdb.planning.backup.placement import (
    MountedFilesystem,
    NamedPath,
    Placement,
    discover,
    mount_of,
    mount_points,
    place,
)
from zsnapdb.planning.health.facts import lost_hint
from zsnapdb.planning.server_copy.copy_options import binlog_paths
from zsnapdb.planning.server_copy.version_compatibility import objections_to_files, objections_to_settings
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.zfs import datasets, version
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import mounted

_MARKS = (".dockerenv", "run/.containerenv")
"""Files that Docker and Podman create in the root of a container."""


def is_container(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in an application container.

    The root file system of a container is removed with the container. A container image may set the environment
    variable `container` (systemd.io/CONTAINER_INTERFACE). Kubernetes sets a different variable.
    """
    named = environment.get("container", "") == "oci" or "KUBERNETES_SERVICE_HOST" in environment
    return named or any((root / mark).exists() for mark in _MARKS)


NAMES = ("available", "used", "written", "usedbyrefreservation", "quota", "refquota", "refreservation")
"""The ZFS properties that show the space of a dataset."""


def judge_volumes_space(
    volumes: Sequence[str], read: Mapping[str, dict[str, Property]] | None = None
) -> list[FitnessFinding]:
    """Return findings about whether there is enough free space for a snapshot. All volumes are in one pool.

    The argument `read` contains the properties `NAMES` of the pool and the volumes, if the caller has just read them.
    """
    if not volumes:
        return []
    pool = pool_of(volumes[0])
    if read is None:
        read = datasets.properties_of(list(dict.fromkeys([pool, *volumes])), NAMES)
    return judge_space(_space(pool, read[pool]), [_space(name, read[name]) for name in volumes])


def _space(name: str, values: dict[str, Property]) -> DatasetSpace:
    # If there is no limit, `zfs get -p` prints `0`, or `none` in some releases.
    numbers = [int(values[key].value) if values[key].value.isdecimal() else 0 for key in NAMES]
    return DatasetSpace(name, *numbers)


@dataclass(frozen=True)
class Observed:
    """An instance that is fit for a backup.

    The observation contains the server, the volumes and mountpoints, the lock that a backup needs, and all findings.
    """

    facts: ServerFacts
    volumes: dict[str, str]
    mountpoints: dict[str, str]
    paths: tuple[NamedPath, ...]
    placement: Placement
    blocks: BlockSizes
    choice: LockChoice
    position: Position
    findings: tuple[FitnessFinding, ...]
    ciphers: Mapping[str, str] = field(default_factory=dict)
    """The cipher of each dataset that ZFS encrypts, by dataset name."""
    keys: BinlogKeys = NO_KEYS
    """The decryption keys of the server's binlogs, read before the snapshot."""
    binlog_key: str | None = None
    """The name of the key that encrypts the newest binlog; None if that binlog is not encrypted."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.findings)

    def with_findings(self, more: Iterable[FitnessFinding]) -> Observed:
        """Return the observation with more findings at the end."""
        return replace(self, findings=(*self.findings, *more))


@dataclass(frozen=True)
class Examined:
    """All findings about an instance, and the observation if no finding prevents a backup."""

    findings: tuple[FitnessFinding, ...]
    observed: Observed | None


def observe(instance: Instance, session: Session) -> Observed:
    """Return the observed instance if it is fit for a backup.

    Raises:
        PreflightError: the instance is not fit for a backup; the message lists every objection.
    """
    examined = examine(instance, session)
    error = objection(examined.findings)
    if error is not None or examined.observed is None:
        raise error or PreflightError(f"instance {instance.name} could not be examined")
    return examined.observed


def examine(instance: Instance, session: Session) -> Examined:
    """Check everything that could prevent a backup; change nothing.

    Raises:
        ServerError: the server does not answer.
    """
    judged = CheckedDatasets()
    if instance.settings.volumes is not None:
        judged = _judge_datasets(instance, instance.settings.volumes)
    findings = list(judged.findings)
    if objection(findings) is not None:
        return Examined(tuple(findings), None)
    probed = probe(session)
    elsewhere = _elsewhere(probed, session)
    if elsewhere:
        return Examined((*findings, *elsewhere), None)
    zone = server_zone(session, process_of(session), is_default=probed.variables.get("time_zone") == "SYSTEM")
    facts = replace(with_real_paths(probed), origins=set_variables(session), zone=zone)
    setting = instance.settings.lock.strategy
    stops_applier = instance.settings.lock.stop_applier
    findings += judge_server(facts, str(instance.address), forced=setting != AUTO, stops_applier=stops_applier)
    findings += _judge_applier(instance)
    choice, lock_finding = _chosen_lock(facts, setting)
    findings.append(lock_finding)
    mounts = _mounts()
    paths = tuple(NamedPath(path.what, path.path) for path in written_paths(facts))
    volumes = dict(instance.settings.volumes or {})
    if instance.settings.volumes is None:
        discovered = discover(paths, mounts, facts.variables["datadir"])
        volumes = dict(discovered.volumes)
        judged = _judge_datasets(instance, volumes)
        findings += judged.findings
    placement = place(paths, mounts, volumes)
    objections = _objections_to_copies(instance, facts, mounts, volumes)
    findings += judge_placement(instance.name, placement, volumes, objections)
    if objection(findings) is None:
        findings += judge_volumes_space(list(volumes.values()), judged.seen)
    findings += (*_judge_surroundings(facts, mounts, volumes), *_judge_state(instance, mounts))
    keys = BinlogKeys(tuple(Path(path.path) for path in keyring_paths(facts.variables))).remembered()
    key_findings, binlog_key = _judge_keys(facts, keys)
    findings += key_findings
    blocks = data_file_blocks(facts)
    findings += judge_blocks(blocks, doublewrite=repairs_torn_pages(facts), zfs_release=version.kernel_release())
    server = instance.settings.server
    findings += startup_requirements.judge_plugins(server, facts.flavour, facts.version, facts.plugins, prevents=False)
    findings += _judge_hooks(instance)
    found, ciphers = tuple(findings), judged.ciphers
    if placement.objections or objection(findings) is not None:
        return Examined(found, None)
    mountpoints = mount_points(volumes, mounts, paths)
    position = published_position(session, facts)
    observed = Observed(
        facts, volumes, mountpoints, paths, placement, blocks, choice, position, found, ciphers, keys, binlog_key
    )
    return Examined(found, observed)


def _mounts() -> list[MountedFilesystem]:
    return [MountedFilesystem(entry.path, entry.fstype, entry.source, entry.is_bind) for entry in mounted()]


def _objections_to_copies(
    instance: Instance, facts: ServerFacts, mounts: Sequence[MountedFilesystem], volumes: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the reasons why no server can start on a copy of this server's files.

    A restore plan shows the same reasons.
    """
    points = [mount.path for mount in mounts if mount.source in volumes.values() and not mount.is_bind]
    options = instance.settings.server.options
    links = fixed_links(facts.variables["datadir"])
    return (
        *objections_to_files(absolute_tablespaces(facts), links),
        *objections_to_settings(facts.flavour, facts.variables, points, options),
    )


def _judge_applier(instance: Instance) -> list[FitnessFinding]:
    if not replica_applier.is_forgotten(instance):
        return []
    return [
        warning(
            "replica",
            "a killed run left the applier stopped, or a running backup has stopped the applier",
            "run a backup: a backup starts the applier again",
        )
    ]


def _chosen_lock(facts: ServerFacts, setting: str) -> tuple[LockChoice, FitnessFinding]:
    """Return the lock that a backup needs, and a finding.

    If the server does not allow this lock, the finding prevents the backup.
    """
    try:
        choice = choose(facts, setting, locks.STRATEGIES)
        return choice, judge_lock(choice)
    except PreflightError as error:
        return LockChoice(locks.properties("none"), error.message), unfit("lock", error.message, error.hint)


def _elsewhere(facts: ServerFacts, session: Session) -> list[FitnessFinding]:
    """Return a finding if the server's paths are not valid on this host, as for a server in a container.

    The facts are the server's answers, with paths as the server sees them.
    """
    view = dataset_use_checks.other_view(facts.variables, session.peer)
    return [] if view is None else [judge_view(view)]


def with_discovered_volumes(instance: Instance, session: Session) -> Instance:
    """Return the instance with its volumes: the configured datasets, else the datasets with the server's files.

    Raises:
        PreflightError: a path is on no dataset, or the server and this host see the files under different paths.
    """
    if instance.settings.volumes is not None:
        return instance
    probed = probe(session)
    refusal = objection(_elsewhere(probed, session))
    if refusal is not None:
        raise refusal
    facts = with_real_paths(probed)
    mounts = _mounts()
    paths = [NamedPath(path.what, path.path) for path in written_paths(facts)]
    discovered = discover(paths, mounts, facts.variables["datadir"])
    if discovered.objections:
        raise PreflightError(
            f"the volumes of instance {instance.name} cannot be discovered: " + "; ".join(discovered.objections),
            hint="move the files to ZFS",
        )
    return instance.with_volumes(discovered.volumes)


@dataclass(frozen=True)
class CheckedDatasets:
    """A finding for each volume, the ciphers of the encrypted volumes, and the ZFS properties that were read.

    The mapping `seen` contains the properties of the volumes and of their pools.
    """

    findings: tuple[FitnessFinding, ...] = ()
    ciphers: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, dict[str, Property]] = field(default_factory=dict)


def _judge_datasets(instance: Instance, volumes: dict[str, str]) -> CheckedDatasets:
    """Check that each volume exists and is a filesystem. The same `zfs` command also reads the space properties."""
    findings: list[FitnessFinding] = []
    ciphers: dict[str, str] = {}
    there = [dataset for dataset in volumes.values() if datasets.exists(dataset)]
    with_pools = dict.fromkeys([*map(pool_of, there), *there])
    seen = datasets.properties_of(list(with_pools), ["type", "encryption", *NAMES]) if there else {}
    for role, dataset in sorted(volumes.items()):
        name = f"dataset {dataset} (volume {role} of instance {instance.name})"
        if dataset not in there:
            hint = f"find its name with `zfs list`, and correct volumes; {lost_hint(instance.name)}"
            findings.append(unfit("datasets", f"{name} does not exist", hint))
            continue
        kind, encryption = (seen[dataset][key].value for key in ("type", "encryption"))
        if kind != "filesystem":
            findings.append(
                unfit("datasets", f"{name} is a {kind}, not a filesystem", "name the dataset that contains the files")
            )
        elif encryption not in ("off", datasets.UNSET):
            ciphers[dataset] = encryption
            findings.append(ok("datasets", f"{role} = {dataset}, encrypted by ZFS ({encryption})"))
        else:
            findings.append(ok("datasets", f"{role} = {dataset}"))
    findings += judge_sending(ciphers, version.kernel_release() if ciphers else ())
    return CheckedDatasets(tuple(findings), ciphers, seen)


def _judge_keys(facts: ServerFacts, keys: BinlogKeys) -> tuple[list[FitnessFinding], str | None]:
    """Return findings about the newest binlog's key, and the name of the key if the binlog is encrypted.

    If this host cannot decrypt the binlog, a finding prevents the backup.
    """
    named = binlog_paths(facts.variables, "log_bin")
    says = (facts.variables.get("binlog_encryption"), facts.variables.get("encrypt_binlog"))
    if not facts.has_binlog or named is None or "ON" not in says:
        return [], None
    base, index = named
    try:
        newest = Path(os.path.dirname(base), os.path.basename(index_entries(Path(index))[-1]))
        with open_binlog(newest, keys) as file:
            key = key_of(file)
    except ZsnapdbError as error:
        return [unfit("binlog", error.message, error.hint)], None
    except (OSError, IndexError):
        # The server is rotating its binlog at this moment. This is harmless, because the position is later read from
        # the snapshot.
        return [], None
    note = f"it is encrypted with {key}: backups need this key, also after it is rotated; keep each keyring"
    return [warning("keyring", note, "copy the keyring before each rotation")] if key is not None else [], key


def _judge_state(instance: Instance, mounts: list[MountedFilesystem]) -> list[FitnessFinding]:
    """Return a finding if zsnapdb runs in a container whose removal would also remove zsnapdb's own folders."""
    own = (str(instance.host.records.parent), str(instance.host.run))
    return judge_state(own, mounts, is_container=is_container())


def _judge_surroundings(
    facts: ServerFacts, mounts: list[MountedFilesystem], volumes: dict[str, str]
) -> list[FitnessFinding]:
    """Return findings about files that a restore needs, but that the snapshot may not contain."""
    findings = []
    for path in keyring_paths(facts.variables):
        mount = mount_of(path.path, mounts)
        if mount is not None and mount.source in volumes.values():
            findings.append(
                warning(
                    "keyring",
                    f"{path.what} = {path.path} is on a volume: backups contain the key next to its data",
                    "move the keyring elsewhere",
                )
            )
        else:
            findings.append(
                warning(
                    "keyring",
                    f"{path.what} = {path.path} is not in the backup, but restored files need the key",
                    "keep a copy of the keyring",
                )
            )
    for path in needed_by_appliers(facts):
        mount = mount_of(path.path, mounts)
        if facts.variables.get("binlog_format", "ROW").upper() != "ROW" and (
            mount is None or mount.source not in volumes.values()
        ):
            detail = (
                f"{path.what} = {path.path} is on no volume: a running replicated LOAD DATA cannot be continued by a"
                " restored replica"
            )
            findings.append(warning("replica", detail, "set it to a folder on a volume"))
    return findings


def _judge_hooks(instance: Instance) -> list[FitnessFinding]:
    findings = []
    for hook in instance.hooks():
        try:
            hooks.check(hook)
            findings.append(ok("hook", hook.describe()))
        except HookError as error:
            # A `done` hook that only warns must not prevent the backup.
            matters_less = hook.when is When.DONE and hook.on_failure is OnFailure.WARN
            findings.append((warning if matters_less else unfit)("hook", error.message, error.hint))
    return findings


def role_of(path: str, observed: Observed, instance: Instance) -> str:
    """Return the role of the volume that contains a path of the server."""
    mounts = [MountedFilesystem(point, "zfs", role) for role, point in observed.mountpoints.items()]
    mount = mount_of(path, mounts)
    if mount is None:
        raise PreflightError(f"{path} is not on a volume of instance {instance.name}")
    return mount.source
