"""The facts about volumes, pool, memory and server that the rules of `doctor` evaluate. Pure.

`jobs/doctor/rule_facts.py` gathers the facts. A fact that could not be read is None or missing. A rule that needs a
missing fact returns no finding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from zsnapdb.planning.backup.fitness import BlockSizes, PropertyChange, Severity
from zsnapdb.planning.backup.lock_strategy import LockProperties
from zsnapdb.planning.server_facts import ServerFacts


@dataclass(frozen=True)
class VolumeFacts:
    """A volume of an instance.

    It contains ZFS properties as `zfs get -Hp` prints them, and the kinds of files on the volume.
    """

    dataset: str
    properties: Mapping[str, str]
    has_data: bool = False
    """Whether the volume has InnoDB files with pages."""
    has_logs: bool = False
    """Whether the volume has the redo log, binlogs or relay logs."""

    def number(self, name: str) -> int | None:
        """Return a numeric property; None if the property was not read or is not a number."""
        value = self.properties.get(name, "")
        return int(value) if value.isdecimal() else None


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a pool.

    `role` is data, log, cache, spare, special or dedup. `group` is the mirror or raidz that the device belongs to, or
    "" if there is none.

    `path` is the full path of the device.
    """

    path: str
    role: str
    group: str
    health: str


@dataclass(frozen=True)
class PoolFacts:
    """A pool, with the values that `zpool` prints. `capacity` and `fragmentation` are percentages.

    `ashifts` contains the alignment (as n for 2^n bytes) of each single device and of each group. `untrimmed` contains
    the devices that support TRIM but were never trimmed. `last_scrub` is the time when the last finished scrub ended,
    or None if there was no scrub.
    """

    name: str
    health: str
    created: datetime | None = None
    capacity: int | None = None
    fragmentation: int | None = None
    autotrim: bool | None = None
    ashifts: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[DeviceFacts, ...] = ()
    last_scrub: datetime | None = None
    is_scrub_known: bool = True
    """Whether `zpool status` shows the last scrub.

    It does not show the last scrub while a scrub is running, or after a resilver.
    """
    untrimmed: tuple[str, ...] = ()
    errors: str = ""
    """The data errors that `zpool status` reports; "" if there are none."""

    def devices_of(self, role: str) -> tuple[DeviceFacts, ...]:
        """Return the devices with this role."""
        return tuple(device for device in self.devices if device.role == role)

    def role_of(self, name: str) -> str:
        """Return the role of the device or group with this name from `ashifts`; `data` if no device has this name.

        `zpool get` omits the folder of a device, and the partition that ZFS created on a whole disk.
        """
        short = re.compile(rf"(?:.*/)?{re.escape(name)}(?:p?[0-9]+|-part[0-9]+)?")
        return next((d.role for d in self.devices if name == d.group or short.fullmatch(d.path)), "data")

    @property
    def has_single_disks(self) -> bool:
        """Whether the pool stores data on a disk that does not belong to a mirror, raidz or draid."""
        return any(not device.group for device in self.devices_of("data"))


@dataclass(frozen=True)
class MemoryFacts:
    """The host's memory and the ARC's limit (`c_max` of arcstats) in bytes, and the parameters of the ZFS module.

    `parameters` contains the contents of the files below /sys/module/zfs/parameters, as text.
    """

    total: int | None = None
    arc_max: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """The numbers of tables with compressed pages, and of encrypted tables if `server.options` lacks their keys."""

    page_compressed: int = 0
    encrypted: int = 0


@dataclass(frozen=True)
class RecoveryFacts:
    """The facts that commands need in an emergency.

    `account` is the account of the instance on its server, as `user@host`. If `lets_root_in` is set, the operating
    system's root can log in as the server's root through the socket without a password. If zsnapdb cannot stop and
    start the server, `no_control` is the reason, otherwise "".
    """

    account: str
    lets_root_in: bool
    no_control: str = ""
    has_server_id_file: bool = False


@dataclass(frozen=True)
class LocalRepository:
    """A repository in a folder on a disk of this host. `pool` is the pool of its dataset; "" if it is not on ZFS."""

    folder: str
    pool: str = ""


@dataclass(frozen=True)
class AdviceFacts:
    """All facts that the rules evaluate.

    `at` is the time of the evaluation, and `zfs_release` is the release of the loaded ZFS module.

    `privileges` contains the account's privileges on `*.*`. It is None if the account has a role, because no table of
    the server lists the privileges of roles. `copy_options` contains the configured options of servers on copies.
    `binlog_bytes` is the size of all binlogs.
    """

    at: datetime
    zfs_release: tuple[int, ...]
    volumes: tuple[VolumeFacts, ...]
    pool: PoolFacts | None
    memory: MemoryFacts
    server: ServerFacts
    blocks: BlockSizes
    lock: LockProperties
    privileges: frozenset[str] | None = None
    tables: TableFacts | None = None
    binlog_bytes: int | None = None
    copy_options: tuple[str, ...] = ()
    uses_selinux: bool = False
    recovery: RecoveryFacts | None = None
    local_repository: LocalRepository | None = None
    """The repository of the instance, if it and all its copies are on disks of this host."""
    unread: tuple[str, ...] = ()
    """The unreadable facts, each with its reason."""

    @property
    def data_volumes(self) -> tuple[VolumeFacts, ...]:
        """The volumes with files of InnoDB."""
        return tuple(volume for volume in self.volumes if volume.has_data)

    def variable(self, name: str) -> str | None:
        """Return a global variable of the server; None if the server does not have it."""
        return self.server.variables.get(name)

    def variable_number(self, name: str) -> int | None:
        """Return a numeric global variable; None if the server does not have it or its value is not a number."""
        value = (self.variable(name) or "").partition(".")[0]
        return int(value) if value.isdecimal() else None

    def variable_is(self, name: str, *values: str) -> bool:
        """Return whether the variable has one of these values. The values are compared in upper case."""
        value = self.variable(name)
        return value is not None and value.upper() in values

    @property
    def data_bytes(self) -> int | None:
        """The uncompressed size of the files on the data volumes, in bytes (`logicalreferenced`)."""
        sizes = [volume.number("logicalreferenced") for volume in self.data_volumes]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class RuleFinding:
    """A finding of a rule, with the bad fact, and the command or setting that repairs it on this host.

    If `fix` is "", the text `fix` of the rule is used. If `change` is set, `doctor --fix` may make this change (see
    FitnessFinding).
    """

    fact: str
    fix: str = ""
    change: PropertyChange | None = None


def repairable_finding(fact: str, change: PropertyChange, note: str = "") -> RuleFinding:
    """Return a finding that a safe change repairs. `note` describes the limits of the change."""
    return RuleFinding(fact, f"{change.command}{note}", change)


@dataclass(frozen=True)
class Rule:
    """A rule of `doctor`. `id` never changes, because configurations use it to silence the rule.

    `title` describes the desired state, and `reason` the effects of any other state. `source` names the manual page,
    the release or the experiment that the rule is based on. `fix` describes the repair. `check` returns the findings.
    It returns no findings if there is no problem, or if a required fact could not be read.
    """

    id: str
    title: str
    reason: str
    source: str
    fix: str
    check: Callable[[AdviceFacts], Iterable[RuleFinding]]
    severity: Severity = Severity.WARNING
