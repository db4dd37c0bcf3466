"""A restore as a list of typed steps, and the choice of the point it goes to. Pure.

The executor (`jobs/restore.py`) runs the steps in order, a journal remembers which are done, and a runbook prints them.
A step holds everything it needs, so that a plan that was written down means the same later, whatever the repository
holds by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from zsnapdb.model import Flavour

HandoverKind = Literal["stopped", "run", "promote", "replica"]


@dataclass(frozen=True)
class ArchivedTransaction:
    """A transaction of the archive: its GTID (None where they are not numbered), when it was committed (UTC), its binlog and end offset there."""

    gtid: str | None
    committed: datetime
    file: str
    end: int

    def describe(self) -> str:
        """Return it in a few words."""
        return (
            f"{self.gtid or '(no GTID)'} committed {self.committed:%Y-%m-%d %H:%M:%S.%f} UTC, at {self.file}:{self.end}"
        )


@dataclass(frozen=True)
class RestorePoint:
    """The state that a restore ends in: a transaction boundary.

    `gtids` are all transactions in it, as the server prints them (None where they are not numbered). `last` is the last
    transaction replayed (None: nothing is replayed, the backup is the point), `following` the first one left out (None:
    the archive's end).
    """

    gtids: str | None
    last: ArchivedTransaction | None = None
    following: ArchivedTransaction | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RestoreLayout:
    """Where the volumes go: per role its dataset and mount point; `top` is the dataset above all, `mount` the folder above all.

    `places` are dataset and mount point of each role where the backup was made.
    """

    top: str
    datasets: Mapping[str, str]
    mountpoints: Mapping[str, str]
    mount: str
    places: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Preflight:
    """Look at everything the restore depends on; nothing is touched.

    The pool has room for `plain_bytes` of streams and binlogs (at the least for `stored_bytes`), knows the features of
    the streams (bits of their BEGIN records), ZFS is not older; a server program of the same series and not older is
    there, and the account it runs as; every data key can be opened; every chunk is in the repository with its size.
    """

    pool: str
    parent: str
    plain_bytes: int
    stored_bytes: int
    features: int
    zfs_version: str
    flavour: Flavour
    server_version: str
    backups: tuple[str, ...]
    kind: Literal["preflight"] = "preflight"

    @property
    def name(self) -> str:
        return "preflight"

    def describe(self) -> str:
        return (
            f"check the pool {self.pool}, the server program for {self.flavour} {self.server_version}, keys and chunks;"
            " nothing is touched yet"
        )


@dataclass(frozen=True)
class MakeTop:
    """Make the dataset above volumes that stand side by side; it is mounted nowhere."""

    dataset: str
    kind: Literal["make-top"] = "make-top"

    @property
    def name(self) -> str:
        return "make-top"

    def describe(self) -> str:
        return f"make the dataset {self.dataset} above the volumes"


@dataclass(frozen=True)
class Receive:
    """Receive one volume's stream of one backup into its dataset, unmounted.

    `from_guid` is None for a full one; sizes in bytes.
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
class MountPart:
    """One volume to mount: the snapshot it must stand at, and the properties it gets back."""

    role: str
    dataset: str
    mountpoint: str
    snapshot: str
    guid: int
    properties: Mapping[str, str]


@dataclass(frozen=True)
class MountVolumes:
    """Compare the received snapshots' GUIDs, give the properties back, mount, outermost first."""

    parts: tuple[MountPart, ...]
    kind: Literal["mount"] = "mount"

    @property
    def name(self) -> str:
        return "mount"

    def describe(self) -> str:
        return "compare GUIDs, give properties back, mount " + ", ".join(part.dataset for part in self.parts)


@dataclass(frozen=True)
class Recover:
    """Start the server once with its own binlogs, unreachable; it must stand at exactly the backup's position.

    Shut it down.
    """

    gtids: str | None
    binlog_file: str | None
    binlog_offset: int | None
    kind: Literal["recover"] = "recover"

    @property
    def name(self) -> str:
        return "recover"

    def describe(self) -> str:
        where = self.gtids if self.gtids is not None else f"{self.binlog_file}:{self.binlog_offset}"
        return f"start the server once, unreachable, let it recover, and compare its position with {where}"


@dataclass(frozen=True)
class LogPart:
    """An archived binlog to replay: its name in the archive, which history it is of, how much of it (offsets in bytes).

    `stop` None: to its last complete transaction.
    """

    incarnation: str
    file: str
    size: int
    start: int
    stop: int | None


Replayer = Literal["applier", "client"]
"""Who replays binlogs: the server's own applier, from relay logs, in parallel; or a client, in one session, from what the server's binlog tool prints."""


@dataclass(frozen=True)
class Replay:
    """Replay some archived binlogs, then snapshot.

    Before it the datasets are rolled back to where the step before left them.
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
        """How many bytes of binlogs are fetched."""
        return sum(log.size for log in self.logs)

    def describe(self) -> str:
        first, last = self.logs[0], self.logs[-1]
        upto = f"{last.file}:{last.stop}" if last.stop is not None else f"the end of {last.file}"
        through = " through the client" if self.by == "client" else ""
        return (
            f"replay {len(self.logs)} archived binlogs{through}, from {first.file}:{first.start} to {upto}, then"
            " snapshot"
        )


@dataclass(frozen=True)
class CheckServer:
    """Start the server unreachable: it must hold exactly these transactions, and its tables must be readable.

    Shut it down.
    """

    gtids: str | None
    kind: Literal["check"] = "check"

    @property
    def name(self) -> str:
        return "check"

    def describe(self) -> str:
        return f"check that it stands at exactly {self.gtids}" if self.gtids is not None else "check that it starts"


@dataclass(frozen=True)
class LeaveStopped:
    """Leave it mounted, stopped, with an option file to start it by: the server it was, reachable on a socket only."""

    server_id: int
    kind: Literal["stopped"] = "stopped"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return "leave it mounted and stopped, with an option file"


@dataclass(frozen=True)
class RunBeside:
    """Start it beside the old server: new identity, own port and socket."""

    server_id: int
    port: int
    kind: Literal["run"] = "run"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return f"start it with a new identity (server_id {self.server_id}) on 127.0.0.1:{self.port}"


@dataclass(frozen=True)
class PromotePart:
    """A volume that takes the place of an old one: `dataset` becomes `place`; what is there now becomes `old` (None: nothing is there)."""

    role: str
    dataset: str
    place: str
    old: str | None
    mountpoint: str


@dataclass(frozen=True)
class Promote:
    """Put it in place of the old one, which is kept under another name: datasets renamed, mount points moved.

    `renames` are whole trees (from, to), in order; the old one's first. The next backup is a full one; the restored
    server has a new identity of its own (incarnation), as it may go another way than the old one did.
    """

    parts: tuple[PromotePart, ...]
    renames: tuple[tuple[str, str], ...]
    incarnation: str
    kind: Literal["promote"] = "promote"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return "put it in place of the old one: " + ", ".join(f"{a} becomes {b}" for a, b in self.renames)


@dataclass(frozen=True)
class MakeReplica:
    """Start it with a new identity as a replica of a source and wait until it has caught up.

    The password is in a file, never here.
    """

    server_id: int
    port: int
    source_host: str
    source_port: int
    source_user: str
    password_file: str | None
    kind: Literal["replica"] = "replica"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return (
            f"start it with a new identity (server_id {self.server_id}) on port {self.port} as a replica of"
            f" {self.source_host}:{self.source_port}"
        )


HandoverStep = LeaveStopped | RunBeside | Promote | MakeReplica
Step = Preflight | MakeTop | Receive | MountVolumes | Recover | Replay | CheckServer | HandoverStep


@dataclass(frozen=True)
class RestorePlan:
    """What a restore does, in order. `asked` is the point as it was asked for, `point` what it came to.

    `variables` are those of the backup's server that another one needs to start on its files.
    """

    restore_id: str
    instance: str
    repository: str
    asked: str
    created: datetime
    flavour: Flavour
    server_version: str
    server_id: int
    server_uuid: str | None
    variables: Mapping[str, str]
    backup_id: str
    point: RestorePoint
    layout: RestoreLayout
    steps: tuple[Step, ...] = field(default=())

    def step(self, name: str) -> Step | None:
        """Return the step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def receives(self) -> tuple[Receive, ...]:
        return tuple(step for step in self.steps if isinstance(step, Receive))

    @property
    def replays(self) -> tuple[Replay, ...]:
        return tuple(step for step in self.steps if isinstance(step, Replay))
