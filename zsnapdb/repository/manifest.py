"""The manifest of a backup: everything needed to restore it, written last and never changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from zsnapdb.errors import DamagedError, PreflightError
from zsnapdb.model import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.planning.facts import Channel
from zsnapdb.stream.chunks import Chunk, Codec


class Part(BaseModel):
    """A part of a stored document: what is not known of it is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PositionPart(Part):
    """Binlog file and offset, GTIDs as the server prints them, and how they are known."""

    binlog_file: str | None
    binlog_offset: int | None
    gtids: str | None
    source: str

    def position(self, flavour: Flavour) -> Position:
        """Return the position as the tool works with it."""
        coordinates = None
        if self.binlog_file is not None and self.binlog_offset is not None:
            coordinates = BinlogCoordinates(self.binlog_file, self.binlog_offset)
        return Position(
            flavour, coordinates, parse_gtids(flavour, self.gtids) if self.gtids is not None else None, self.source
        )

    @classmethod
    def of(cls, position: Position) -> PositionPart:
        """Return the stored form of a position."""
        return cls(
            binlog_file=position.coordinates.file if position.coordinates else None,
            binlog_offset=position.coordinates.offset if position.coordinates else None,
            gtids=str(position.gtids) if position.gtids is not None else None,
            source=position.source,
        )


class LockPart(Part):
    """How the server was held: strategy, why that one, and for how many milliseconds."""

    strategy: str
    reason: str
    held_ms: float


class ChannelPart(Part):
    """Where a replica stood in its source.

    `exact` if its applier was stopped for the snapshot, else at about that time.
    """

    name: str
    host: str
    port: int
    binlog_file: str | None
    binlog_offset: int | None
    gtids: str
    exact: bool

    @classmethod
    def of(cls, channel: Channel) -> ChannelPart:
        """Return the stored form of a replication channel."""
        at = channel.coordinates
        return cls(
            name=channel.name,
            host=channel.host,
            port=channel.port,
            binlog_file=at.file if at else None,
            binlog_offset=at.offset if at else None,
            gtids=channel.gtids,
            exact=not channel.applying,
        )


class ServerPart(Part):
    """Which server it was and what a server needs to start on its files.

    Tablespaces outside the data directory by path.
    """

    flavour: Flavour
    version: str
    server_uuid: str | None
    server_id: int
    variables: dict[str, str]
    absolute_tablespaces: tuple[str, ...] = ()


class ServerSourcePart(Part):
    """The source of a backup of a database server: which one, where it stood, and how it was held still."""

    kind: Literal["server"] = "server"
    server: ServerPart
    position: PositionPart
    lock: LockPart
    channels: tuple[ChannelPart, ...] = ()

    def summary(self) -> ServerSourcePart:
        """Return it without the variables, which are long."""
        return self.model_copy(update={"server": self.server.model_copy(update={"variables": {}})})


class OtherSourcePart(Part):
    """A source of a kind that this module knows nothing of.

    Its backups are listed, kept, verified, copied and removed like any other. What it says of itself is kept as it is.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str = Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")

    def summary(self) -> OtherSourcePart:
        """Return its kind alone."""
        return OtherSourcePart(kind=self.kind)


def _source_tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "server" if kind == "server" else "other"


SourcePart = Annotated[
    Annotated[ServerSourcePart, Tag("server")] | Annotated[OtherSourcePart, Tag("other")], Discriminator(_source_tag)
]
"""What was backed up, by `kind`."""


class FilesystemType(Part):
    """What belongs to a volume that is a filesystem: where it was mounted, and the ZFS properties to give back."""

    kind: Literal["filesystem"] = "filesystem"
    mountpoint: str
    properties: dict[str, str]


class ZvolType(Part):
    """What belongs to a volume that is a zvol: its size and block size in bytes, and the ZFS properties to give back."""

    kind: Literal["zvol"] = "zvol"
    volsize: int = Field(gt=0)
    volblocksize: int = Field(gt=0)
    properties: dict[str, str]


VolumeType = Annotated[FilesystemType | ZvolType, Field(discriminator="kind")]
"""What kind of dataset a volume is, and what belongs to that kind."""


class KeyPart(Part):
    """A data key as it is stored: wrapped to these age recipients, any of whom can open it."""

    id: str
    recipients: tuple[str, ...]
    wrapped: str


class VolumePart(Part):
    """One volume's stream. `from_guid` is None for a full one; sizes in bytes; chunks in order."""

    role: str
    dataset: str
    snapshot: str
    guid: int
    from_guid: int | None
    send_flags: tuple[str, ...]
    features: int
    type: VolumeType
    codec: Codec
    plain_size: int
    sha256: str
    chunks: tuple[Chunk, ...]

    @property
    def filesystem(self) -> FilesystemType:
        """What belongs to it as a filesystem. PreflightError if it is another kind of dataset."""
        if isinstance(self.type, FilesystemType):
            return self.type
        raise PreflightError(
            f"volume {self.role} ({self.dataset}) is a {self.type.kind}, not a filesystem",
            hint="this command works on backups of servers on filesystems",
        )

    @property
    def chunk_count(self) -> int:
        return len(self.chunks)

    @property
    def stored_size(self) -> int:
        return sum(chunk.stored_size for chunk in self.chunks)


class Manifest(Part):
    """A backup."""

    format: Literal[1] = 1
    backup_id: str
    instance: str
    repository_id: str
    created: datetime
    tool_version: str
    zfs_version: str
    pool_guid: int
    createtxg: int
    source: SourcePart
    keys: tuple[KeyPart, ...] = ()
    volumes: tuple[VolumePart, ...]

    @property
    def is_full(self) -> bool:
        return all(volume.from_guid is None for volume in self.volumes)

    @property
    def plain_size(self) -> int:
        return sum(volume.plain_size for volume in self.volumes)

    @property
    def stored_size(self) -> int:
        return sum(volume.stored_size for volume in self.volumes)

    def volume(self, role: str) -> VolumePart | None:
        """Return the volume with the role, if the backup has it."""
        return next((volume for volume in self.volumes if volume.role == role), None)

    def guids(self) -> dict[str, int]:
        """Return the snapshot GUID of each role."""
        return {volume.role: volume.guid for volume in self.volumes}

    def encode(self) -> bytes:
        """Return the stored form: one line of JSON, UTF-8, without its line feed."""
        return self.model_dump_json().encode()


class _HasSource(Protocol):
    @property
    def backup_id(self) -> str: ...
    @property
    def source(self) -> SourcePart: ...


def server_source(backup: _HasSource) -> ServerSourcePart:
    """Return what a backup says of its server. PreflightError if it is a backup of something else."""
    if isinstance(backup.source, ServerSourcePart):
        return backup.source
    raise PreflightError(
        f"backup {backup.backup_id} is a backup of kind {backup.source.kind}, not of a database server",
        hint="this command needs a backup of a database server, see `zsnapdb list`",
    )


def is_of_server(backup: _HasSource) -> bool:
    """Whether it is a backup of a database server."""
    return isinstance(backup.source, ServerSourcePart)


def decode(body: bytes, name: str) -> Manifest:
    """Return the manifest in the line `body`; DamagedError names it if it is not one."""
    try:
        return Manifest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(whole)"
        raise DamagedError(
            f"manifest {name} cannot be read: {where}: {first['msg']}",
            hint="it was altered, or a newer zsnapdb wrote it",
        ) from error
