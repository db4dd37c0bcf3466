"""The last step of a restore: what becomes of the restored server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HandoverKind = Literal["stopped", "look", "run", "promote", "replica"]


@dataclass(frozen=True)
class LeaveStopped:
    """Leave the server mounted and stopped, with an option file to start it.

    Started with this file it has its old identity and is reachable by a socket only.
    """

    server_id: int
    kind: Literal["stopped"] = "stopped"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return "leave the server mounted and stopped, with an option file"


@dataclass(frozen=True)
class LookAround:
    """Start the server read-only, with its old identity, on its private socket alone, until the restore goes on.

    The volumes are snapshotted before: whatever is done to the server is undone when the restore goes on.
    """

    server_id: int
    kind: Literal["look"] = "look"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return "snapshot, then start the server read-only, on its private socket alone, to look around"


@dataclass(frozen=True)
class RunBeside:
    """Start the server beside the old server, with a new identity, its own port and its own socket."""

    server_id: int
    port: int
    kind: Literal["run"] = "run"

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return f"start the server with a new identity (server_id {self.server_id}) on 127.0.0.1:{self.port}"


def replaced_suffix(restore_id: str) -> str:
    """Return what the names of the datasets end with that this restore replaced."""
    return f"-replaced-{restore_id.lower()}"


def place_of(old: str, restore_id: str) -> str:
    """Return the name that a replaced dataset had before. The same name if it is not that of a replaced dataset."""
    suffix = replaced_suffix(restore_id)
    return "/".join(part.removesuffix(suffix) for part in old.split("/"))


@dataclass(frozen=True)
class PromotePart:
    """A volume that replaces an old volume: `dataset` is renamed to `place`.

    The dataset that has this name now is renamed to `old` (None: there is no such dataset). `old_guid` is its GUID and
    `old_canmount` its property, `old_canmount_is_set` whether the site has set it; None in plans of older versions.
    `mounted_by`: what `mountpoint` of the dataset says if it is no path: something else mounts it, such as fstab.
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
        """The value of `mountpoint` of the dataset in that place."""
        return self.mounted_by or self.mountpoint


@dataclass(frozen=True)
class Promote:
    """Put the restored server in place of the old server: datasets are renamed, mount points moved.

    The datasets of the old server are kept under other names. `renames` are trees of datasets (from, to), in order,
    those of the old server first. The next backup is a full backup. The restored server begins a new `incarnation`,
    because its history may differ from that of the old server. `server_id` is the one that the site gives it, in its
    own option file, before its first start (None: no other one was requested). `unit` is the systemd unit that a rewind
    stops and starts (None: it is not known, or not needed).
    """

    parts: tuple[PromotePart, ...]
    renames: tuple[tuple[str, str], ...]
    incarnation: str
    server_id: int | None = None
    unit: str | None = None
    kind: Literal["promote"] = "promote"

    @property
    def name(self) -> str:
        return "handover"

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

    @property
    def name(self) -> str:
        return "handover"

    def describe(self) -> str:
        return (
            f"start the server with a new identity (server_id {self.server_id}) on port {self.port} as a replica of"
            f" {self.source_host}:{self.source_port}"
        )


HandoverStep = LeaveStopped | LookAround | RunBeside | Promote | MakeReplica
