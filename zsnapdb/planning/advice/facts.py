"""The facts that the rules of `doctor` judge: volumes, pool, memory and server. Pure.

`jobs/doctor/advice.py` gathers them.
A fact that could not be read is None or absent. A rule that needs such a fact finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from zsnapdb.planning.backup.fitness import BlockSizes, PropertyChange, Severity
from zsnapdb.planning.backup.lock_strategy import LockProperties
from zsnapdb.planning.facts import ServerFacts


@dataclass(frozen=True)
class VolumeFacts:
    """A volume of an instance: its ZFS properties as `zfs get -Hp` prints them, and what the server keeps on it."""

    dataset: str
    properties: Mapping[str, str]
    has_data: bool = False
    """Files of InnoDB with pages lie here."""
    has_logs: bool = False
    """The redo log, binlogs or relay logs lie here."""

    def number(self, name: str) -> int | None:
        """Return a property that is a number, None if it was not read or is none."""
        value = self.properties.get(name, "")
        return int(value) if value.isdigit() else None


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a pool. `role` is data, log, cache, spare, special or dedup; `group` is its mirror or raidz, or "".

    `path` is the full path of the device.
    """

    path: str
    role: str
    group: str
    health: str


@dataclass(frozen=True)
class PoolFacts:
    """A pool, as `zpool` prints it. `capacity` and `fragmentation` are percentages.

    `ashifts` has the alignment (2^n bytes) of each device that stands alone, and of each group. `untrimmed` are the
    devices that know TRIM and were never trimmed. `last_scrub` is the end of the last scrub that ended, None if there
    was none.
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
    """Not while a scrub runs, and not after a resilver: `zpool status` then shows no last scrub."""
    untrimmed: tuple[str, ...] = ()
    errors: str = ""
    """What `zpool status` says of errors in data, "" if there are none."""

    def devices_of(self, role: str) -> tuple[DeviceFacts, ...]:
        """Return the devices of this role."""
        return tuple(device for device in self.devices if device.role == role)

    def role_of(self, name: str) -> str:
        """Return the role of a device or group by its name in `ashifts`; data if there is no such name.

        `zpool get` leaves out the folder of a device, and the partition that ZFS made on a whole disk.
        """
        short = re.compile(rf"(?:.*/)?{re.escape(name)}(?:p?\d+|-part\d+)?")
        return next((d.role for d in self.devices if name == d.group or short.fullmatch(d.path)), "data")

    @property
    def has_single_disks(self) -> bool:
        """Whether data lies on a disk that is in no mirror, raidz or draid."""
        return any(not device.group for device in self.devices_of("data"))


@dataclass(frozen=True)
class MemoryFacts:
    """The memory of the host (bytes), the greatest size of the ARC (`c_max` of arcstats), the parameters of the module.

    `parameters` are the files below /sys/module/zfs/parameters, as text.
    """

    total: int | None = None
    arc_max: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """How many tables have compressed pages, and how many are encrypted, by their create options."""

    page_compressed: int = 0
    encrypted: int = 0


@dataclass(frozen=True)
class RecoveryFacts:
    """What commands of a bad day need. `account` is that of the instance on its server, as `user@host`.

    `lets_root_in`: root of the operating system is root of the server, by its socket and without a password.
    `no_control` says why nobody knows how the server is stopped and started; "" if it is known.
    """

    account: str
    lets_root_in: bool
    no_control: str = ""
    has_server_id_file: bool = False


@dataclass(frozen=True)
class AdviceFacts:
    """Everything that the rules judge. `at` is the time of the judgement, `zfs_release` that of the loaded module.

    `privileges` are those of the account on `*.*`; None if a role gives it some, which no table of the server lists.
    `copy_options` are the configured options of servers on copies. `binlog_bytes` is the size of all binlogs.
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
    unread: tuple[str, ...] = ()
    """What could not be read, and why."""

    @property
    def data_volumes(self) -> tuple[VolumeFacts, ...]:
        """The volumes with files of InnoDB."""
        return tuple(volume for volume in self.volumes if volume.has_data)

    def variable(self, name: str) -> str | None:
        """Return a global variable of the server, None if the server does not have it."""
        return self.server.variables.get(name)

    def variable_number(self, name: str) -> int | None:
        """Return a global variable that is a number, None if it is none or the server does not have it."""
        value = (self.variable(name) or "").partition(".")[0]
        return int(value) if value.isdigit() else None

    def variable_is(self, name: str, *values: str) -> bool:
        """Whether the variable has one of these values, in upper case."""
        value = self.variable(name)
        return value is not None and value.upper() in values

    @property
    def data_bytes(self) -> int | None:
        """How many bytes of data the volumes with data hold before compression (`logicalreferenced`)."""
        sizes = [volume.number("logicalreferenced") for volume in self.data_volumes]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None


class Area(StrEnum):
    """What a rule is about. The page of the rules has a section for each area."""

    DATASETS = "Datasets"
    POOL = "Pool"
    MEMORY = "Memory and module"
    SERVER = "Server"
    RECOVERY = "Recovery"


@dataclass(frozen=True)
class Hit:
    """What a rule found: the fact, and the command or setting that mends it here ("": the fix of the rule).

    `change` is that command, if `doctor --fix` may run it (see FitnessFinding).
    """

    fact: str
    fix: str = ""
    change: PropertyChange | None = None


def mended_by(fact: str, change: PropertyChange, note: str = "") -> Hit:
    """Return a hit that a safe change mends. `note` says what the change does not do."""
    return Hit(fact, f"{change.command}{note}", change)


@dataclass(frozen=True)
class Rule:
    """A rule over facts. `id` never changes: configurations name it to silence the rule.

    `title` says what should be. `reason` says what happens otherwise. `source` names the manual page, the release or
    the experiment that the rule follows. `fix` says what to do. `check` returns what the rule finds; nothing if all is
    well, or if a fact that it needs could not be read.
    """

    id: str
    area: Area
    title: str
    reason: str
    source: str
    fix: str
    check: Callable[[AdviceFacts], Iterable[Hit]]
    severity: Severity = Severity.WARNING
