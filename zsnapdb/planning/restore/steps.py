"""The typed steps for the restore of a server or a machine. Pure.

The executor (`jobs/restore/server_restore.py`) runs the steps in order. A journal records the finished steps, and a
runbook prints all steps. A step contains all its data, so changes in the repository do not change the meaning of a
stored plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from zsnapdb.base.domain_types import Flavour

HandoverKind = Literal["stopped", "look", "run", "promote", "replica"]


@dataclass(frozen=True)
class LeaveStopped:
    """Leave the server mounted and stopped, with an option file to start it.

    With this option file, the server starts with its old identity and accepts connections only on a socket.
    """

    server_id: int
    kind: Literal["stopped"] = "stopped"
    name: ClassVar[str] = "handover"

    def describe(self) -> str:
        return "leave the server mounted and stopped, with an option file"


@dataclass(frozen=True)
class ReadOnlyStart:
    """Start the server read-only with its old identity and only on its private socket, until the restore continues.

    The step first creates snapshots of the volumes. When the restore continues, all changes that were made on the
    server are undone.
    """

    server_id: int
    kind: Literal["look"] = "look"
    name: ClassVar[str] = "handover"

    def describe(self) -> str:
        return "snapshot, then start the server read-only, on its private socket alone, to look around"


@dataclass(frozen=True)
class ParallelRun:
    """Start the server next to the old server, with a new identity, its own port and its own socket."""

    server_id: int
    port: int
    kind: Literal["run"] = "run"
    name: ClassVar[str] = "handover"

    def describe(self) -> str:
        return f"start the server with a new identity (server_id {self.server_id}) on 127.0.0.1:{self.port}"


def replaced_suffix(restore_id: str) -> str:
    """Return the suffix that this restore adds to the names of replaced datasets."""
    return f"-replaced-{restore_id.lower()}"


def place_of(old: str, restore_id: str) -> str:
    """Return the former name of a replaced dataset. If the dataset was not replaced, return its name unchanged."""
    suffix = replaced_suffix(restore_id)
    return "/".join(part.removesuffix(suffix) for part in old.split("/"))


@dataclass(frozen=True)
class PromotePart:
    """A volume that replaces an old volume. Its dataset is renamed from `dataset` to `place`.

    The old dataset, which is named `place` before the step, is renamed to `old` (None if there is no such dataset). The
    field `old_guid` is its GUID, `old_canmount` is the value of its `canmount`, and `old_canmount_is_set` says whether
    an administrator has set this value. These three fields are None in plans from older versions. If the `mountpoint`
    of the old dataset is not a path, for example because fstab mounts the dataset, the field `mounted_by` is this
    value. Otherwise `mounted_by` is None.
    """

    role: str
    dataset: str
    place: str
    old: str | None
    mountpoint: str
    old_guid: int | None = None
    old_canmount: str | None = None
    old_canmount_is_set: bool | None = None
    mounted_by: str | None = None

    @property
    def mountpoint_property(self) -> str:
        """The value that the property `mountpoint` of the dataset gets in its new place."""
        return self.mounted_by or self.mountpoint


@dataclass(frozen=True)
class Promote:
    """Put the restored server in place of the old server: rename the datasets and move the mount points.

    The datasets of the old server stay under new names. The field `renames` lists the renames of dataset trees (from,
    to) in order, the trees of the old server first. The next backup is a full backup. The restored server starts a new
    `incarnation`, because its history may differ from that of the old server. The server's option file must contain
    `server_id` before the first start; it is None if no particular id was requested. A rewind stops and starts the
    systemd unit `unit`, which is None if it is unknown or not needed.
    """

    parts: tuple[PromotePart, ...]
    renames: tuple[tuple[str, str], ...]
    incarnation: str
    server_id: int | None = None
    unit: str | None = None
    kind: Literal["promote"] = "promote"
    name: ClassVar[str] = "handover"

    @property
    def replaced(self) -> list[str]:
        """The datasets of the old server, by their names before the step. The source may have had other names."""
        return [part.place for part in self.parts if part.old is not None]

    def describe(self) -> str:
        needed = f"; the site then gives it server_id {self.server_id}" if self.server_id is not None else ""
        return "replace the old server: " + ", ".join(f"rename {a} to {b}" for a, b in self.renames) + needed


@dataclass(frozen=True)
class MakeReplica:
    """Start the server with a new identity as a replica of a source, and wait until it has caught up.

    The password is in a file, never in the plan.
    """

    server_id: int
    port: int
    source_host: str
    source_port: int
    source_user: str
    password_file: str | None
    kind: Literal["replica"] = "replica"
    name: ClassVar[str] = "handover"

    def describe(self) -> str:
        return (
            f"start the server with a new identity (server_id {self.server_id}) on port {self.port} as a replica of"
            f" {self.source_host}:{self.source_port}"
        )


HandoverStep = LeaveStopped | ReadOnlyStart | ParallelRun | Promote | MakeReplica


@dataclass(frozen=True)
class PoolNeeds:
    """The requirements on the receiving pool: space for `plain_bytes` of streams, and the features of the streams.

    At least `stored_bytes` must be free. The field `features` contains the feature bits from the BEGIN records of the
    streams. The ZFS version should be at least `zfs_version`, with which the backup was made.
    """

    pool: str
    parent: str
    plain_bytes: int
    stored_bytes: int
    features: int
    zfs_version: str
    encrypted: tuple[str, ...] = field(default=(), kw_only=True)
    """The datasets that ZFS encrypted on the source, but that are received unencrypted."""
    raw: tuple[str, ...] = field(default=(), kw_only=True)
    """The datasets with raw streams. Each received dataset needs its own key."""


@dataclass(frozen=True)
class Preflight(PoolNeeds):
    """Check everything that the restore depends on, without changing anything.

    The pool must have the space and the features for streams and binlogs. The host must have the server's account, and
    a server program of the same series that is at least as new. Every data key must be readable. Every chunk must be in
    the repository, each with the recorded size.
    """

    flavour: Flavour
    server_version: str
    backups: tuple[str, ...]
    fetches: bool = True
    """Whether the volumes are fetched from the repository. Otherwise they are clones of snapshots on this host."""
    kind: Literal["preflight"] = "preflight"
    name: ClassVar[str] = "preflight"

    def describe(self) -> str:
        return (
            f"check the pool {self.pool}, the server program for {self.flavour} {self.server_version}, keys and chunks;"
            " nothing is changed yet"
        )


@dataclass(frozen=True)
class MachinePreflight(PoolNeeds):
    """Check everything that the restore of a machine depends on: pool, data keys and chunks.

    The step changes nothing.
    """

    backups: tuple[str, ...]
    kind: Literal["machine-preflight"] = "machine-preflight"
    name: ClassVar[str] = "preflight"

    def describe(self) -> str:
        return f"check the pool {self.pool}, keys and chunks; nothing is changed yet"


@dataclass(frozen=True)
class MakeTop:
    """Create the common parent dataset of volumes that are siblings. The dataset is not mounted."""

    dataset: str
    kind: Literal["make-top"] = "make-top"
    name: ClassVar[str] = "make-top"

    def describe(self) -> str:
        return f"make the dataset {self.dataset} above the volumes"


@dataclass(frozen=True)
class Receive:
    """Receive the stream that one backup stored for one volume. The received dataset is not mounted.

    The field `from_guid` is None for a full stream. Sizes are in bytes. A raw stream creates a dataset with its own
    key, which ZFS reads from `key_location` (keylocation in zfsprops(7)).
    """

    backup_id: str
    role: str
    dataset: str
    mountpoint: str
    snapshot: str
    guid: int
    from_guid: int | None
    plain_bytes: int
    stored_bytes: int
    key_location: str | None = None
    kind: Literal["receive"] = "receive"

    @property
    def name(self) -> str:
        return f"receive-{self.backup_id}-{self.role}"

    def describe(self) -> str:
        return (
            f"receive the {self.role} volume of {self.backup_id} ({'full' if self.from_guid is None else 'increment'})"
            f" into {self.dataset}"
        )


@dataclass(frozen=True)
class CloneSnapshot:
    """Clone one volume from a snapshot of the backup on this host, without using the repository.

    The clone is not mounted. The full name of the snapshot is `origin`, and its GUID is `guid`. The clone itself gets a
    snapshot named `snapshot`, to which later steps roll the clone back.
    """

    backup_id: str
    role: str
    dataset: str
    mountpoint: str
    origin: str
    snapshot: str
    guid: int
    kind: Literal["clone-snapshot"] = "clone-snapshot"

    @property
    def name(self) -> str:
        return f"clone-{self.backup_id}-{self.role}"

    def describe(self) -> str:
        return f"clone the {self.role} volume from {self.origin} into {self.dataset}"


@dataclass(frozen=True)
class MountPart:
    """A volume to mount, with the snapshot that it must have and the properties that are set on it."""

    role: str
    dataset: str
    mountpoint: str
    snapshot: str
    guid: int
    properties: Mapping[str, str]


@dataclass(frozen=True)
class MountVolumes:
    """Compare the GUIDs of received snapshots with the plan, set properties, and mount the volumes, outermost first."""

    parts: tuple[MountPart, ...]
    kind: Literal["mount"] = "mount"
    name: ClassVar[str] = "mount"

    def describe(self) -> str:
        return "compare GUIDs, restore properties, mount " + ", ".join(part.dataset for part in self.parts)


@dataclass(frozen=True)
class Recover:
    """Start the server once on its own binlogs, without a network, and shut it down.

    The server must recover to exactly the backup's position.
    """

    gtids: str | None
    binlog_file: str | None
    binlog_offset: int | None
    kind: Literal["recover"] = "recover"
    name: ClassVar[str] = "recover"

    def describe(self) -> str:
        where = self.gtids if self.gtids is not None else f"{self.binlog_file}:{self.binlog_offset}"
        position = where or "an empty set of GTIDs"
        return f"start the server once, unreachable, let it recover, and compare its position with {position}"


@dataclass(frozen=True)
class LogPart:
    """An archived binlog to replay: its incarnation, its name in the archive, and its range (offsets in bytes).

    If `stop` is None, the range ends with the last complete transaction. If `is_local` is set, the server's own file is
    still on this host. If this file contains the archived bytes, it is copied; otherwise the binlog is fetched from the
    archive. The field `fingerprint` is the hash of the binlog's head, which differs between files with the same name.
    It is "" if an older version wrote the plan. The field `description` is the digest of the binlog's description, if
    the binlog was already rotated, and thus final, when the plan was made.
    """

    incarnation: str
    file: str
    size: int
    start: int
    stop: int | None
    is_local: bool = False
    fingerprint: str = ""
    description: str = ""


Replayer = Literal["applier", "client"]
"""The program that replays binlogs.

`applier` is the server's applier, which reads relay logs and works in parallel. `client` is a client program, which
runs the output of the server's binlog tool in one session.
"""


@dataclass(frozen=True)
class Replay:
    """Replay a batch of archived binlogs, and then create snapshots.

    The datasets are first rolled back to the snapshot of the previous step.
    """

    number: int
    logs: tuple[LogPart, ...]
    gtids: str | None
    by: Replayer = "applier"
    kind: Literal["replay"] = "replay"

    @property
    def name(self) -> str:
        return f"replay-{self.number}"

    @property
    def size(self) -> int:
        """The number of binlog bytes to fetch."""
        return sum(log.size for log in self.logs)

    def describe(self) -> str:
        first, last = self.logs[0], self.logs[-1]
        upto = f"{last.file}:{last.stop}" if last.stop is not None else f"the end of {last.file}"
        through = " through the client" if self.by == "client" else ""
        local = sum(log.is_local for log in self.logs)
        whence = f" ({local} from this host, {len(self.logs) - local} from the archive)" if local else ""
        return (
            f"replay {len(self.logs)} archived binlogs{whence}{through}, from {first.file}:{first.start} to {upto},"
            " then snapshot"
        )


@dataclass(frozen=True)
class ResumedRun:
    """Continue a finished restore and create snapshots. The restored server must still have exactly the planned GTIDs.

    The step starts the server once, without a network, and shuts it down. If `after_look` is set, the server was
    started read-only after the restore. In this case the step stops the server and rolls its volumes back to the state
    before this start.
    """

    number: int
    gtids: str
    after_look: bool = False
    kind: Literal["take-up"] = "take-up"

    @property
    def name(self) -> str:
        return f"take-up-{self.number}"

    def describe(self) -> str:
        if self.after_look:
            return f"stop the server, and undo all changes since it was at exactly {self.gtids}"
        return f"check that the restored server is still at exactly {self.gtids}, then snapshot"


@dataclass(frozen=True)
class CheckServer:
    """Start the server without a network, check it, and shut it down.

    The server must contain exactly the planned transactions, and its tables must be readable.
    """

    gtids: str | None
    kind: Literal["check"] = "check"
    name: ClassVar[str] = "check"

    def describe(self) -> str:
        if self.gtids is None:
            return "check that the server starts"
        return f"check that the server is at exactly {self.gtids}"


@dataclass(frozen=True)
class VolumeCheck:
    """A zvol to check: the snapshot that it must have, its size in bytes, and the properties to restore."""

    role: str
    dataset: str
    snapshot: str
    guid: int
    size: int
    properties: Mapping[str, str]


@dataclass(frozen=True)
class CheckVolumes:
    """Compare GUIDs and sizes of the received zvols with the plan, set their properties, and wait for their devices."""

    parts: tuple[VolumeCheck, ...]
    kind: Literal["check-volumes"] = "check-volumes"
    name: ClassVar[str] = "check-volumes"

    def describe(self) -> str:
        names = ", ".join(part.dataset for part in self.parts)
        return f"compare GUIDs and sizes, restore properties, and wait for the devices of {names}"


@dataclass(frozen=True)
class DefineDomain:
    """Define the domain of the restored machine.

    The machine is not started, and the links of its interfaces are down.
    """

    domain: str
    uuid: str
    network: str
    xml: str
    kind: Literal["define-domain"] = "define-domain"
    name: ClassVar[str] = "define-domain"

    def describe(self) -> str:
        return f"define the domain {self.domain} ({self.uuid}) with its links down; it is not started"


Step = (
    Preflight
    | MakeTop
    | Receive
    | CloneSnapshot
    | MountVolumes
    | Recover
    | Replay
    | ResumedRun
    | CheckServer
    | HandoverStep
)
MachineStep = MachinePreflight | MakeTop | Receive | CheckVolumes | DefineDomain


def full_receive_reason(step: Receive, *, to_guid: int, from_guid: int, records: bool) -> str | None:
    """Return why this step cannot continue an interrupted receive; None if it can.

    The arguments `to_guid` and `from_guid` are the GUIDs that ZFS reports for the interrupted stream. For a full
    stream, `from_guid` is 0. If `records` is set, at least one record of the stream was received.
    """
    if (to_guid, from_guid) != (step.guid, step.from_guid or 0):
        return f"ZFS kept a part of another snapshot, with GUID {to_guid}, not of {step.snapshot}"
    if step.key_location is not None:
        return "a stream that is encrypted as its blocks were cannot be continued in its middle"
    if not records:
        return "nothing of it was received"
    return None
