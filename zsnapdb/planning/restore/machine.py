"""A restore of a virtual machine as a list of typed steps: its zvols are received, and its domain is defined. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from zsnapdb.planning.restore.steps import MakeTop, Receive, own_roots


@dataclass(frozen=True)
class MachinePreflight:
    """Check everything the restore depends on; nothing is changed.

    The pool has room for `plain_bytes` of streams (at least for `stored_bytes`) and has the features of the streams.
    Every data key can be opened. Every chunk is in the repository with its size.
    """

    pool: str
    parent: str
    plain_bytes: int
    stored_bytes: int
    features: int
    zfs_version: str
    backups: tuple[str, ...]
    encrypted: tuple[str, ...] = ()
    """The zvols that ZFS encrypted where they were backed up, and that are received in the clear."""
    raw: tuple[str, ...] = ()
    """The zvols whose streams are encrypted as their blocks were."""
    kind: Literal["machine-preflight"] = "machine-preflight"

    @property
    def name(self) -> str:
        return "preflight"

    def describe(self) -> str:
        return f"check the pool {self.pool}, keys and chunks; nothing is changed yet"


@dataclass(frozen=True)
class VolumeCheck:
    """One zvol: the snapshot that it must have, its size in bytes, and the properties to restore."""

    role: str
    dataset: str
    snapshot: str
    guid: int
    size: int
    properties: Mapping[str, str]


@dataclass(frozen=True)
class CheckVolumes:
    """Compare GUIDs and sizes of the received zvols, restore the properties, and wait for their devices."""

    parts: tuple[VolumeCheck, ...]
    kind: Literal["check-volumes"] = "check-volumes"

    @property
    def name(self) -> str:
        return "check-volumes"

    def describe(self) -> str:
        names = ", ".join(part.dataset for part in self.parts)
        return f"compare GUIDs and sizes, restore properties, and wait for the devices of {names}"


@dataclass(frozen=True)
class DefineDomain:
    """Define the domain of the restored machine. It is not started, and the links of its interfaces are down."""

    domain: str
    uuid: str
    network: str
    xml: str
    kind: Literal["define-domain"] = "define-domain"

    @property
    def name(self) -> str:
        return "define-domain"

    def describe(self) -> str:
        return f"define the domain {self.domain} ({self.uuid}) with its links down; it is not started"


MachineStep = MachinePreflight | MakeTop | Receive | CheckVolumes | DefineDomain


@dataclass(frozen=True)
class MachineRestorePlan:
    """What a restore of a machine does, in order. `grade` says how consistent the disks of the backup are.

    `top` is the dataset above the zvols, `datasets` has the zvol of each role. `notes` say what the restored machine
    lacks.
    """

    restore_id: str
    instance: str
    repository: str
    requested: str
    created: datetime
    backup_id: str
    grade: str
    grade_reason: str
    original: str
    top: str
    datasets: Mapping[str, str]
    notes: tuple[str, ...] = ()
    steps: tuple[MachineStep, ...] = field(default=())
    repository_name: str | None = None
    """The configured repository if it is not the instance's own."""

    def step(self, name: str) -> MachineStep | None:
        """Return the step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def mounts(self) -> tuple[str, ...]:
        """None: zvols are not mounted."""
        return ()

    @property
    def receives(self) -> tuple[Receive, ...]:
        return tuple(step for step in self.steps if isinstance(step, Receive))

    @property
    def with_own_keys(self) -> tuple[str, ...]:
        """The zvols that are encryption roots, as their streams are raw."""
        return own_roots(self.receives)

    @property
    def define(self) -> DefineDomain | None:
        """The step that defines the domain; None if the domain cannot be defined."""
        return next((step for step in self.steps if isinstance(step, DefineDomain)), None)
