"""The plan for a restore of a server or machine: the point, the locations of the volumes, and the steps. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position, Snapshot, parse_gtids, pool_of
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.safe_open import Owner
from zsnapdb.planning.restore.steps import (
    CloneSnapshot,
    DefineDomain,
    MachineStep,
    MountVolumes,
    Promote,
    Receive,
    Replay,
    ResumedRun,
    Step,
)
from zsnapdb.planning.server_facts import ServerPlugins
from zsnapdb.planning.server_time_zone import ServerZone

TimeOf = Literal["transaction", "binlog"]
"""The source of a commit time: the transaction itself, or the latest transaction of its binlog."""


@dataclass(frozen=True)
class ArchivedTransaction:
    """An archived transaction: its GTID, its commit time (UTC), its binlog, and its end offset in the binlog.

    The GTID is None if the server's transactions have no GTIDs. If `time_of` is "binlog", the transaction itself was
    not read, and `committed` is the latest commit time in its binlog. If the server's clock was set back, the
    transaction may have been committed at an earlier time.
    """

    gtid: str | None
    committed: datetime
    file: str
    end: int
    time_of: TimeOf = "transaction"

    def describe(self) -> str:
        name, at = self.gtid or "(no GTID)", f"{self.committed:%Y-%m-%d %H:%M:%S.%f} UTC"
        if self.time_of == "binlog":
            return f"{name} at {self.file}:{self.end}, committed {at}, or before if the server's clock was set back"
        return f"{name} committed {at}, at {self.file}:{self.end}"


@dataclass(frozen=True)
class RestorePoint:
    """The state at which a restore ends. The state is a boundary between two transactions.

    - `gtids`: the GTIDs of all transactions in the state, as the server prints them; None if transactions have no GTIDs
    - `last`: the last replayed transaction; None if nothing is replayed after the backup
    - `following`: the first transaction that is left out; None if the archive ends at the point
    """

    gtids: str | None
    last: ArchivedTransaction | None = None
    following: ArchivedTransaction | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RestoreLayout:
    """The locations of the restored volumes: the dataset and mount point of each role.

    The field `top` is the dataset above all restored datasets, and `mount` is the folder above all restored folders.
    The field `places` contains the dataset and mount point of each role on the source.
    """

    top: str
    datasets: Mapping[str, str]
    mountpoints: Mapping[str, str]
    mount: str
    places: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class _PlannedRestore:
    """The fields that the plans for a server and for a machine have in common.

    The field `requested` is the text of the requested point.
    """

    restore_id: str
    instance: str
    repository: str
    requested: str
    created: datetime
    backup_id: str
    steps: tuple[Any, ...] = ()
    repository_name: str | None = None
    """The name of the configured repository, if it is not the instance's own repository."""

    def step(self, name: str) -> Any:
        """Return the step with this name; None if there is none."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def receives(self) -> tuple[Receive, ...]:
        return tuple(step for step in self.steps if isinstance(step, Receive))

    @property
    def with_own_keys(self) -> tuple[str, ...]:
        """The datasets that are received from raw streams.

        Each of them is its own encryption root (zfs-receive(8), observed with 2.3.9).
        """
        return tuple(dict.fromkeys(step.dataset for step in self.receives if step.key_location is not None))


@dataclass(frozen=True)
class RestorePlan(_PlannedRestore):
    """The plan of a restore of a server: its point, its layout and its steps in order.

    The field `variables` contains the variables that a server needs to start on the files of the backup's server. The
    field `key_files` contains the files from which the backup's server read the keys of encrypted tables.
    """

    flavour: Flavour
    server_version: str
    server_id: int
    server_uuid: str | None
    variables: Mapping[str, str]
    point: RestorePoint
    layout: RestoreLayout
    steps: tuple[Step, ...] = field(default=(), kw_only=True)
    key_files: tuple[str, ...] = ()
    file_owner: tuple[int, int] | None = None
    """The uid and gid of the server's files on the source; None if not recorded."""
    buffer_pool: int | None = None
    """The limit of the buffer pool during recovery and replay, in bytes; None for the server's own size."""
    plugins: ServerPlugins | None = None
    """The plugins of the backup's server; None if not recorded."""
    zone: ServerZone | None = None
    """The time zone in which the backup's server ran; None if not recorded."""
    site_commands: tuple[str, ...] = ()
    """Commands for a person. They copy the properties that the site set on the source datasets to the restored
    datasets.
    """
    base: tuple[int, int] | None = None
    """The pool and the transaction group of the backup's snapshots; None in plans of older versions."""

    @property
    def top(self) -> str:
        return self.layout.top

    @property
    def targets(self) -> set[str]:
        """The datasets that the restore creates."""
        return {self.layout.top, *self.layout.datasets.values()}

    @property
    def mounts(self) -> tuple[str, ...]:
        """The folders that the restore uses as mount points."""
        return (self.layout.mount,)

    def position(self, gtids: str | None, file: str | None = None, offset: int | None = None) -> Position:
        """Return a binlog position in the format of the plan's server. Raises ValueError if the GTIDs are malformed."""
        at = BinlogCoordinates(file, offset) if file is not None and offset is not None else None
        return Position(self.flavour, at, None if gtids is None else parse_gtids(self.flavour, gtids), "restore")

    @property
    def owner(self) -> Owner | None:
        """The account of the server's files on the source; None if not recorded."""
        return None if self.file_owner is None else Owner(*self.file_owner)

    @property
    def point_identity(self) -> str:
        """Return a digest of everything from which the restored state is built.

        Two plans with the same identity restore the same state.

        The digest covers the snapshots of the backup and the replayed ranges of archived binlogs, but not the host on
        which the replay runs. The fingerprints of binlog heads distinguish files with the same name. Such files exist
        if the server was rolled back.
        """
        replayed = [
            (log.incarnation, log.file, log.start, log.stop, log.fingerprint)
            for step in self.replays
            for log in step.logs
        ]
        guids = [part.guid for step in self.steps if isinstance(step, MountVolumes) for part in step.parts]
        text = repr((self.repository, self.instance, self.backup_id, guids, self.point.gtids, replayed))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def promotion(self) -> Promote | None:
        """The last step, if it exchanges the server's datasets for the restored ones; else None."""
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Promote) else None

    @property
    def clones(self) -> tuple[CloneSnapshot, ...]:
        return tuple(step for step in self.steps if isinstance(step, CloneSnapshot))

    @property
    def replays(self) -> tuple[Replay, ...]:
        return tuple(step for step in self.steps if isinstance(step, Replay))

    @property
    def is_continued(self) -> bool:
        return any(isinstance(step, ResumedRun) for step in self.steps)


@dataclass(frozen=True)
class MachineRestorePlan(_PlannedRestore):
    """The plan for the restore of a machine, with its steps in order. The `grade` is the backup's consistency level.

    The field `top` is the dataset above the zvols, and `datasets` maps each role to its zvol. The field `notes` lists
    the parts of the original machine that the restored machine lacks.
    """

    grade: str
    grade_reason: str
    original: str
    top: str
    datasets: Mapping[str, str]
    notes: tuple[str, ...] = ()
    steps: tuple[MachineStep, ...] = field(default=(), kw_only=True)

    @property
    def targets(self) -> set[str]:
        """The datasets that the restore creates."""
        return {self.top, *self.datasets.values()}

    @property
    def mounts(self) -> tuple[str, ...]:
        """Always empty, because zvols are not mounted."""
        return ()

    @property
    def define(self) -> DefineDomain | None:
        """The step that defines the domain; None if the domain cannot be defined."""
        return next((step for step in self.steps if isinstance(step, DefineDomain)), None)


AnyRestorePlan = RestorePlan | MachineRestorePlan


class RestoreOrigin(StrEnum):
    """The requested origin of the data. AUTO means this host if it has all snapshots, otherwise the repository."""

    AUTO = "auto"
    LOCAL = "local"
    REPOSITORY = "repository"


class SetStanding(StrEnum):
    """The status of a local snapshot set without a backup in the repository, as this host's record shows it."""

    LOCAL = "local"
    STORED = "stored"
    UNKNOWN = "unknown"


def standing_note(backup_id: str, standing: SetStanding) -> str:
    """Return a text about the status of the snapshot set from which a restore starts."""
    if standing is SetStanding.LOCAL:
        return f"{backup_id} is a local set (`zsnapdb snapshot`), which is in no repository"
    if standing is SetStanding.STORED:
        return f"{backup_id} is a backup that this host stored; this restore begins with its snapshots on this host"
    return f"whether the set {backup_id} is in a repository is not known: the record of this host cannot be read"


@dataclass(frozen=True)
class OriginChoice:
    """The chosen origin, with its reason.

    The field `snapshots` contains the full names of the snapshots to clone, by role. It is empty if all volumes are
    fetched from the repository.
    """

    reason: str
    snapshots: Mapping[str, str] = field(default_factory=dict)


def choose_origin(
    requested: RestoreOrigin, backup_id: str, guids: Mapping[str, int], here: Mapping[str, Snapshot], target: str
) -> OriginChoice:
    """Return the origin of the volumes of a backup.

    The argument `guids` maps each role to the GUID of the backup's snapshot, and `here` maps roles to snapshots on this
    host. A clone is in the same pool as its snapshot (zfs-clone(8)). So the dataset to restore to (`target`) must be in
    that pool too. Raises PreflightError if this host was requested and lacks a snapshot.
    """
    if requested is RestoreOrigin.REPOSITORY:
        return OriginChoice("the repository was requested")
    obstacle = _obstacle(guids, here, target)
    if obstacle is None:
        names = {role: snapshot.full_name for role, snapshot in sorted(here.items())}
        return OriginChoice(f"this host has every snapshot of {backup_id}: nothing of it is fetched", names)
    if requested is RestoreOrigin.LOCAL:
        raise PreflightError(
            f"backup {backup_id} cannot be restored from the snapshots on this host: {obstacle}",
            hint="use --origin repository, or choose a backup of `zsnapdb list --local`",
        )
    return OriginChoice(f"everything is fetched: {obstacle}")


def _obstacle(guids: Mapping[str, int], here: Mapping[str, Snapshot], target: str) -> str | None:
    for role, guid in sorted(guids.items()):
        snapshot = here.get(role)
        if snapshot is None:
            return f"it has no snapshot of volume {role}"
        if snapshot.guid != guid:
            return f"{snapshot.full_name} is another snapshot: its GUID is {snapshot.guid}, the backup's is {guid}"
        if pool_of(snapshot.dataset) != pool_of(target):
            return f"{snapshot.full_name} is in another pool than the target {target}"
    return None
