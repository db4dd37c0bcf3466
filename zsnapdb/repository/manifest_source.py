"""The source in a manifest: a database server or a virtual machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position, parse_gtids
from zsnapdb.base.errors import DamagedError
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
from zsnapdb.planning.schema_content import rows_not_restored
from zsnapdb.planning.server_facts import Channel, ServerPlugins
from zsnapdb.planning.server_time_zone import ServerZone
from zsnapdb.planning.vm.consistency_level import Grade
from zsnapdb.repository.objects import Part


class PositionPart(Part):
    """A stored position: binlog file and offset, GTIDs in the server's format, and the source of these values.

    `binlog_fingerprint` is the SHA-256 of the binlog's head, as in the archive. `last_gtid` is the GTID of the last
    transaction before the offset in that binlog. Each of these two fields is None if its value is unknown.
    """

    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText | None
    source: Words
    binlog_fingerprint: Sha256 | None = None
    last_gtid: GtidText | None = None

    def position(self, flavour: Flavour) -> Position:
        """Return the position as a `Position`.

        Raises: ValueError if the GTIDs are malformed.
        """
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
    """The lock of the server: its strategy, the reason for it, and its duration in milliseconds.

    `waited` describes the sessions that waited for the lock (None if not recorded).
    """

    strategy: ShortLine
    reason: Words
    held_ms: Seconds
    waited: Words | None = None


class ChannelPart(Part):
    """The position of a replica in the binlogs of its source.

    `exact` is True if the replica's applier was stopped for the snapshot. If it was not stopped, the channel's position
    is approximate.
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
    """The account that owned a server's files at the time of the backup: its uid and the gid of its primary group."""

    uid: int = Field(gt=0, lt=2**32)
    gid: int = Field(ge=0, lt=2**32)


class ServerPart(Part):
    """The identity of a server, and the settings that are needed to start a server on its files.

    - `absolute_tablespaces`: paths of tablespaces outside the data directory.
    - `engines`: number of user tables of each storage engine.
    - `key_files`: files with the keys of encrypted tables. The backup may not contain these files.
    - `origins`: origin of each variable that was set, as reported by the server.
    - `binlog_key`: name of the key of the newest encrypted binlog.
    - `plugins`: the plugins of the server (None: not recorded).
    - `file_owner`: owner of the server's files.
    - `unlogged`: changes that the server did not write to its binlog.
    - `zone`: time zone of the server's process (None: not recorded).
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
        """Sentences about the tables whose rows are not in the backup."""
        return rows_not_restored(self.server.engines)

    @model_validator(mode="after")
    def _gtids_are_of_the_flavour(self) -> Self:
        self.position.position(self.server.flavour)
        return self

    def summary(self) -> ServerSourcePart:
        """Return the source without the server's variables, which are long."""
        return self.model_copy(update={"server": self.server.model_copy(update={"variables": {}})})


def _domain_xml(text: str) -> str:
    # Imported here, because most manifests describe servers.
    from zsnapdb.planning.vm.domain import parse

    try:
        parse(text)
    except DamagedError as error:
        raise ValueError(error.message) from error
    return text


DomainXml = Annotated[str, StringConstraints(max_length=1 << 18), AfterValidator(_domain_xml)]
"""The XML of a libvirt domain. No domain is defined from this XML unchanged; see `planning/vm/restored_domain.py`."""


class FreezePart(Part):
    """A freeze of file systems by the guest agent: their number and list, and the duration in milliseconds."""

    count: Count
    held_ms: Seconds
    mount_points: tuple[ShortLine, ...] = ()
    problem: Words = ""


class BoundPart(Part):
    """The position that a server published at one moment: binlog file and offset, and GTIDs.

    A value is None if the server did not publish it.
    """

    binlog_file: FileName | None
    binlog_offset: Count | None
    gtids: GtidText | None


class ServerInsidePart(Part):
    """A server that runs inside the machine. It was locked for `held_ms` milliseconds during the snapshot.

    The server's position in the snapshot is between `before` and `after`. `after` is None if the lock was lost.
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
    """The source of a virtual machine's backup: its libvirt domain, and the consistency grade of its disks.

    `xml` is the libvirt XML that the domain's next start uses. `freeze` is None if no file system was frozen.
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
