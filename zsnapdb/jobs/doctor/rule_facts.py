"""The facts for the rules of `doctor`, and the evaluation of the rules. Nothing is changed.

`watch` measures the load during a period, for `zsnapdb doctor --load`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.errors import PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.quantities import quantity
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.backup.preflight import Observed, observe
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import create_plan, haproxy_socket, kept_ports, pool, space_limits
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.dataset_copies.sweep import Leak
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.mysql import accounts, variables
from zsnapdb.mysql.binlog import binlog_files
from zsnapdb.mysql.process.discovery import seen_by_root
from zsnapdb.mysql.process.service import service_of, serving
from zsnapdb.mysql.schema import schema_catalogue
from zsnapdb.mysql.session import Session
from zsnapdb.planning.advice.catalogue import Silence, check_silences, judge_advice
from zsnapdb.planning.advice.facts import (
    AdviceFacts,
    LocalRepository,
    MemoryFacts,
    RecoveryFacts,
    TableFacts,
    VolumeFacts,
)
from zsnapdb.planning.advice.load_rules import LoadAdvice, LoadSetting, judge_load
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, warning
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of
from zsnapdb.planning.load_counters import Load, LoadSample, load_between
from zsnapdb.planning.server_copy.source_facts import missing_options
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.zfs import datasets, kernel_facts, pool_facts, version
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import mounted

PROPERTIES = (
    "recordsize",
    "compression",
    "compressratio",
    "primarycache",
    "logbias",
    "sync",
    "atime",
    "relatime",
    "xattr",
    "acltype",
    "redundant_metadata",
    "checksum",
    "dedup",
    "logicalreferenced",
    "available",
)
"""The ZFS properties that the rules read. The property `direct` exists since OpenZFS 2.3."""
_DIRECT = "direct"
_CREATION = "creation"
"""The creation time of a dataset in seconds since 1970 (zfsprops(7)). A pool's root dataset is as old as the pool."""
_OF_DATA = ("datadir", "innodb_data_home_dir", "innodb_data_file_path", "tablespace", "innodb_directories")
_OF_LOGS = ("innodb_log_group_home_dir", "log_bin_basename", "relay_log_basename")
Result = TypeVar("Result")


@dataclass
class _Reader:
    """A reader of facts. It records which facts are unreadable, so that rules about other facts can be evaluated."""

    unread: list[str] = field(default_factory=list)

    def read(self, what: str, part: Callable[[], Result]) -> Result | None:
        try:
            return part()
        except ZsnapdbError as error:
            self.unread.append(f"{what}: {error.message}")
        except (OSError, ValueError, KeyError) as error:
            self.unread.append(f"{what}: {error}")
        return None


def silences(settings: Settings, instance: str) -> list[Silence]:
    """Return the configured silences of an instance. Raises ConfigError if a silence names an unknown rule."""
    every = [Silence(silenced.rule, silenced.reason, silenced.until) for silenced in settings.doctor.silenced]
    check_silences(every)
    return [
        silence
        for silence, silenced in zip(every, settings.doctor.silenced, strict=True)
        if silenced.instance in (None, instance)
    ]


def advise(
    instance: Instance, session: Session, observed: Observed, silenced: Sequence[Silence]
) -> tuple[FitnessFinding, ...]:
    """Return the findings of the rules about an instance that is fit for a backup."""
    return judge_advice(gather(instance, session, observed), silenced)


def gather(instance: Instance, session: Session, observed: Observed) -> AdviceFacts:
    """Return facts about the volumes, pool, host and server of an instance that is fit for a backup."""
    reader, server = _Reader(), observed.facts
    release = version.kernel_release()
    pool = pool_of(next(iter(observed.volumes.values())))
    names = (*PROPERTIES, _CREATION, *([_DIRECT] if release >= (2, 3) else []))
    places = list(dict.fromkeys([pool, *observed.volumes.values()]))
    read = reader.read("the properties of the volumes", lambda: datasets.properties_of(places, names)) or {}
    privileges = reader.read("the privileges of the account", lambda: accounts.account_privileges(session))
    return AdviceFacts(
        at=instance.host.now(),
        zfs_release=release,
        volumes=_volumes(observed, read) if read else (),
        pool=reader.read(f"the pool {pool}", lambda: pool_facts.read_pool(pool, _created(read, pool))),
        memory=reader.read("the memory of the host", kernel_facts.read_memory) or MemoryFacts(),
        server=server,
        blocks=observed.blocks,
        lock=observed.choice.lock,
        privileges=privileges,
        tables=reader.read("the options of the tables", lambda: _tables(instance, session, server)),
        binlog_bytes=(
            reader.read("the binlogs", lambda: binlog_files.total_size(session)) if server.has_binlog else None
        ),
        copy_options=instance.settings.server.options,
        uses_selinux=kernel_facts.uses_selinux(),
        recovery=reader.read("the needs of undo, rescue and rewind", lambda: _recovery(instance, session, observed)),
        local_repository=reader.read("the place of the repository", lambda: local_repository(instance)),
        unread=tuple(reader.unread),
    )


def _tables(instance: Instance, session: Session, server: ServerFacts) -> TableFacts:
    """Return the counts of tables. Encrypted tables count only if `server.options` lacks options for their keys."""
    lacks_keys = missing_options(server.variables, instance.settings.server.options)
    return TableFacts(
        page_compressed=schema_catalogue.count_page_compressed(session, server.flavour),
        encrypted=schema_catalogue.count_encrypted(session) if lacks_keys else 0,
    )


def _recovery(instance: Instance, session: Session, observed: Observed) -> RecoveryFacts:
    control = instance.settings.control
    try:
        service_of(control, serving(Path(observed.facts.variables["datadir"])))
        unknown = ""
    except PreflightError as error:
        unknown = error.message
    socket = instance.settings.socket
    return RecoveryFacts(
        accounts.current_account(session),
        lets_root_in=socket is not None and seen_by_root(socket) is not None,
        no_control=unknown,
        has_server_id_file=control.server_id_file is not None,
    )


_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "glusterfs", "beegfs", "afs"))
"""Types of file systems whose files are on another host. Those of FUSE begin with `fuse.`, such as fuse.sshfs."""


def local_repository(instance: Instance) -> LocalRepository | None:
    """Return the instance's repository if the repository and all its copies are on disks of this host; else None."""
    copy_to = instance.settings.agent.copy_to
    if copy_to is not None and copy_to.to not in instance.copies:
        # An instance does not know the address of this copy.
        return None
    places = [_local_place(repository) for repository in (instance.repository, *instance.copies.values())]
    return None if None in places else places[0]


def _local_place(repository: RepositorySettings) -> LocalRepository | None:
    if repository.address.scheme != "file":
        return None
    folder = os.path.realpath(f"/{repository.address.path}")
    mounts = [MountedFilesystem(entry.path, entry.fstype, entry.source) for entry in mounted()]
    mount = mount_of(folder, mounts)
    if mount is None or mount.fstype in _REMOTE or mount.fstype.startswith("fuse."):
        return None
    return LocalRepository(folder, pool_of(mount.source) if mount.fstype == "zfs" else "")


def _created(read: Mapping[str, Mapping[str, Property]], pool: str) -> datetime | None:
    seconds = read[pool][_CREATION].value if pool in read else ""
    return datetime.fromtimestamp(int(seconds), UTC) if seconds.isdecimal() else None


def _volumes(observed: Observed, read: Mapping[str, Mapping[str, Property]]) -> tuple[VolumeFacts, ...]:
    placed = observed.placement.volume_of

    def holds(role: str, what: Sequence[str]) -> bool:
        return any(placed.get(path.path) == role for path in observed.paths if path.what in what)

    return tuple(
        VolumeFacts(
            dataset,
            {name: entry.value for name, entry in read[dataset].items() if name != _CREATION},
            has_data=holds(role, _OF_DATA),
            has_logs=holds(role, _OF_LOGS),
        )
        for role, dataset in sorted(observed.volumes.items())
    )


@dataclass(frozen=True)
class ClonesHere:
    """The clones on this host, and the leftovers of killed runs. They are read only once for all instances.

    On a host without ZFS, both lists are empty.
    """

    known: Sequence[CloneInfo] = ()
    leaks: Sequence[Leak] = ()


def findings(settings: Settings, instance: Instance, here: ClonesHere) -> list[FitnessFinding]:
    """Return findings about the clones of the instance; change nothing."""
    return [
        *_account(settings, instance),
        *_room(settings, instance, here.known),
        *_pool(settings, instance),
        *_addresses(settings, instance),
        *(
            warning("clones", f"{leak.what}: {leak.where}", leak.hint)
            for leak in here.leaks
            if leak.instance in (instance.name, "")
        ),
    ]


def _account(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    name = settings.clones.server_user
    if name is None or instance.settings.vm is not None:
        return []
    try:
        create_plan.check_account(instance.settings.server, settings.clones)
    except ZsnapdbError as error:
        return [warning("clones", f"{error.message}: clones on this host will be refused", error.hint)]
    return [ok("clones", f"their servers run as {name}")]


def _room(settings: Settings, instance: Instance, known: Sequence[CloneInfo]) -> list[FitnessFinding]:
    """Return a warning for each reason why the instance's clones might occupy space that production needs."""
    try:
        return [
            warning("clones", item.text, item.hint) for item in space_limits.objections(settings, known, instance.name)
        ]
    except ZsnapdbError:
        # On a host without ZFS there are no clones.
        return []


def _pool(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    if instance.settings.pool is None:
        return []
    try:
        good, wanted = len(pool.good_slots(settings, instance)), instance.settings.pool.size
    except ZsnapdbError as error:
        return [warning("clones", f"the pool cannot be judged: {error.message}", error.hint)]
    if good >= wanted:
        return [ok("clones", f"{good} clones wait in the pool")]
    fills = f"run `zsnapdb clone pool {instance.name}`, which says why one is not made"
    return [warning("clones", f"{good} of {wanted} clones wait in the pool", fills)]


def _addresses(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    if settings.clones.address is None or instance.settings.vm is not None:
        return []
    try:
        known = kept_ports.look(settings, instance.host)
    except ZsnapdbError:
        # On a host without ZFS there are no clones.
        return []
    if known.error is not None:
        text = (
            f"clones are reached at ports that a reset may change, and are not reset by a swap: {known.error.message}"
        )
        return [warning("clones", text, known.error.hint)]
    wrong = [kept for kept in known.wrong if kept.clone is None or kept.clone.instance == instance.name]
    if wrong:
        ports = ", ".join(str(kept.port) for kept in wrong)
        is_listened_at = all(kept.is_listened_at for kept in wrong)
        follows = "run `zsnapdb clone addresses --follow`, or `zsnapdb reap`" if is_listened_at else haproxy_socket.HINT
        return [warning("clones", f"HAProxy does not forward to the right servers: port {ports}", follows)]
    return [ok("clones", f"HAProxy leads {quantity(len(known.ports), 'port')} to clones")]


SHORTEST = 1.0
LONGEST = 86400.0
_MARGIN = 60.0
"""The time limit in seconds for an answer of the server, in addition to the watched period."""


@dataclass(frozen=True)
class LoadReport:
    """The load of an instance in a period, and the advice based on the load."""

    instance: str
    load: Load
    advice: tuple[LoadAdvice, ...]


def watch(instance: Instance, seconds: float, sleep: Callable[[float], None] = time.sleep) -> LoadReport:
    """Read all counters at the start and the end of a period, and return the load with advice.

    Raises UsageError if the period is shorter than a second or longer than a day. Raises PreflightError if the instance
    cannot be backed up, because then its datasets are unknown.
    """
    if not SHORTEST <= seconds <= LONGEST:
        raise UsageError(
            f"the load cannot be watched for {seconds:g} s", hint="choose from 1s to 1d, for example --for 10m"
        )
    with open_session(instance, read_timeout=seconds + _MARGIN) as session:
        observed = observe(instance, session)
        pool = pool_of(next(iter(observed.volumes.values())))
        setting = _setting(gather(instance, session, observed), observed.blocks.page_size)
        begin, began = _sample(session, pool), time.monotonic()
        sleep(seconds)
        end, ended = _sample(session, pool), time.monotonic()
    load = load_between(begin, end, ended - began)
    return LoadReport(instance.name, load, judge_load(load, setting))


def _sample(session: Session, pool: str) -> LoadSample:
    return LoadSample(
        server=variables.load_status(session),
        arc=kernel_facts.arc_counters(),
        intent_log=kernel_facts.intent_log_counters(),
        disks=kernel_facts.disk_requests(pool),
        processor=kernel_facts.processor_ticks(),
    )


def _setting(facts: AdviceFacts, page_size: int) -> LoadSetting:
    pool = facts.pool
    return LoadSetting(
        page_size=page_size,
        buffer_pool=facts.variable_number("innodb_buffer_pool_size") or 0,
        data_volumes=facts.data_volumes,
        has_log_device=pool is not None and bool(pool.devices_of("log")),
        has_cache_device=pool is not None and bool(pool.devices_of("cache")),
        bypasses_arc=_bypasses_arc(facts),
    )


def _bypasses_arc(facts: AdviceFacts) -> bool:
    """Return whether the server's reads bypass the ARC (zfsprops(7), direct; since OpenZFS 2.3)."""
    return (
        facts.zfs_release >= (2, 3)
        and facts.variable_is("innodb_flush_method", "O_DIRECT", "O_DIRECT_NO_FSYNC")
        and any(volume.properties.get("direct", "disabled") != "disabled" for volume in facts.data_volumes)
    )
