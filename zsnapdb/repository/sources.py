"""What a manifest says about its source: a database server, or a virtual machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.model import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.patterns import (
    Count,
    FileName,
    GtidText,
    Line,
    MachineName,
    Port,
    Seconds,
    ServerUuid,
    Sha256,
    ShortLine,
    VariableName,
    Words,
)
from zsnapdb.planning.engines import rows_not_restored
from zsnapdb.planning.facts import Channel
from zsnapdb.planning.server_plugins import ServerPlugins
from zsnapdb.planning.time_zone import ServerZone
from zsnapdb.planning.vm.grade import Grade
from zsnapdb.repository.part import Part


class PositionPart(Part):
    """A position as it is stored: binlog file and offset, GTIDs as the server prints them, and their source.

    `binlog_fingerprint` is the SHA-256 of the head of the binlog, as in the archive. `last_gtid` is the GTID of the
    last transaction before the offset in that binlog. Both are None if they are not known.
    """

    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText | None
    source: Words
    binlog_fingerprint: Sha256 | None = None
    last_gtid: GtidText | None = None

    def position(self, flavour: Flavour) -> Position:
        """Return the position as a value of the model. ValueError if the GTIDs are malformed."""
        coordinates = None
        if self.binlog_file is not None and self.binlog_offset is not None:
            coordinates = BinlogCoordinates(self.binlog_file, self.binlog_offset)
        gtids = parse_gtids(flavour, self.gtids) if self.gtids is not None else None
        last = str(parse_gtids(flavour, self.last_gtid)) if self.last_gtid is not None else None
        return Position(flavour, coordinates, gtids, self.source, self.binlog_fingerprint, last)

    @classmethod
    def of(cls, position: Position) -> PositionPart:
        """Return the stored form of a position."""
        return cls(
            binlog_file=position.coordinates.file if position.coordinates else None,
            binlog_offset=position.coordinates.offset if position.coordinates else None,
            gtids=str(position.gtids) if position.gtids is not None else None,
            source=position.source,
            binlog_fingerprint=position.fingerprint,
            last_gtid=position.last_gtid,
        )


class LockPart(Part):
    """The lock of the server: its strategy, the reason for this strategy, and for how many milliseconds it was held.

    `waited` names what waited meanwhile (None: a backup that does not say it).
    """

    strategy: ShortLine
    reason: Words
    held_ms: Seconds
    waited: Words | None = None


class ChannelPart(Part):
    """The position of a replica in its source.

    `exact`: the replica's applier was stopped for the snapshot. Otherwise the position is approximate.
    """

    name: Words
    host: Words
    port: Port
    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText
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


class FileOwnerPart(Part):
    """The account of a server where it was backed up: the numbers of its user and of its first group."""

    uid: int = Field(gt=0, lt=2**32)
    gid: int = Field(ge=0, lt=2**32)


class ServerPart(Part):
    """The identity of a server, and the settings that a server needs to start on its files.

    `absolute_tablespaces` are the paths of tablespaces outside the data directory. `engines` says how many user tables
    have each storage engine. `key_files` are the files with the keys of encrypted tables; they may be in no backup.
    `origins` says of each variable that was set where its value came from, in the server's words. `binlog_key` is the
    name of the key that the newest binlog was encrypted with. `plugins` None: a backup that does not say which plugins
    the server had. `file_owner` owns the server's files. `unlogged` says which changes the server did not write to its
    binlog. `zone` is the time zone of its process (None: a backup that does not say it).
    """

    flavour: Flavour
    version: ShortLine
    server_uuid: ServerUuid | None
    server_id: Count
    variables: dict[VariableName, Line]
    origins: dict[VariableName, ShortLine] = Field(default_factory=dict)
    absolute_tablespaces: tuple[Line, ...] = ()
    engines: dict[ShortLine, Count] = Field(default_factory=dict)
    key_files: tuple[Line, ...] = ()
    binlog_key: Line | None = None
    plugins: ServerPlugins | None = None
    file_owner: FileOwnerPart | None = None
    unlogged: tuple[Words, ...] = ()
    zone: ServerZone | None = None


class ServerSourcePart(Part):
    """The source of a backup of a database server: the server, its position, its lock and its replication channels."""

    kind: Literal["server"] = "server"
    server: ServerPart
    position: PositionPart
    lock: LockPart
    channels: tuple[ChannelPart, ...] = ()

    @property
    def rows_not_restored(self) -> tuple[str, ...]:
        """The tables whose rows the backup does not have, in sentences."""
        return rows_not_restored(self.server.engines)

    @model_validator(mode="after")
    def _gtids_are_of_the_flavour(self) -> Self:
        self.position.position(self.server.flavour)
        return self

    def summary(self) -> ServerSourcePart:
        """Return the source without the server's variables, which are long."""
        return self.model_copy(update={"server": self.server.model_copy(update={"variables": {}})})


def _domain_xml(text: str) -> str:
    # Most manifests describe servers.
    from zsnapdb.planning.vm.domain import parse

    try:
        parse(text)
    except DamagedError as error:
        raise ValueError(error.message) from error
    return text


DomainXml = Annotated[str, StringConstraints(max_length=1 << 18), AfterValidator(_domain_xml)]
"""The XML of a libvirt domain. Nothing is defined from it as it is: see `planning/vm/restored_domain.py`."""


class FreezePart(Part):
    """A freeze by the guest agent: how many file systems, for how many milliseconds, and what the agent listed."""

    count: Count
    held_ms: Seconds
    mount_points: tuple[ShortLine, ...] = ()
    problem: Words = ""


class BoundPart(Part):
    """What a server had published at a moment: binlog file and offset, GTIDs. None: it has none."""

    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText | None


class ServerInsidePart(Part):
    """A server inside the machine that was locked around the snapshot, for `held_ms` milliseconds.

    Its position in the snapshot lies between `before` and `after`. `after` None: the lock was lost.
    """

    flavour: Flavour
    version: ShortLine
    server_uuid: ServerUuid | None
    server_id: Count
    lock: ShortLine
    lock_reason: Words
    held_ms: Seconds
    before: BoundPart
    after: BoundPart | None = None


class MachineSourcePart(Part):
    """The source of a backup of a virtual machine: its libvirt domain, and how consistent its disks are.

    `xml` is the description that the domain's next start would have used. `freeze` is None if nothing was frozen.
    """

    kind: Literal["vm"] = "vm"
    domain: MachineName
    uuid: ServerUuid
    grade: Grade
    reason: Words
    freeze: FreezePart | None = None
    server: ServerInsidePart | None = None
    xml: DomainXml | None = None

    def summary(self) -> MachineSourcePart:
        """Return the source without its XML, which is long."""
        return self.model_copy(update={"xml": None})
