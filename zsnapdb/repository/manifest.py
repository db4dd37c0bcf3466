"""The manifest of a backup, with all facts for a restore. A manifest is written last and never changed."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Literal, NoReturn, Protocol, Self, overload

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.patterns import (
    AgeFile,
    BackupId,
    Count,
    DatasetName,
    Guid,
    InstanceName,
    KeyId,
    Moment,
    MountPoint,
    PropertyName,
    PropertyValue,
    RepositoryId,
    RoleName,
    RunId,
    SendFlag,
    SequenceNumber,
    Sha256,
    ShortLine,
    SnapshotName,
    Words,
)
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.repository.manifest_source import MachineSourcePart, ServerSourcePart
from zsnapdb.repository.objects import Part
from zsnapdb.stream.chunks import NO_CHUNK, Chunk, Codec
from zsnapdb.stream.send_stream_checks import DatasetKind, ExpectedStream

_HASH = 32
_PIECE = 256 << 10
"""Number of bytes of JSON that are parsed in one step. Parsed rows take several times the memory of the table."""
_ROWS = 4096
_NEXT_ROW = re.compile(rb"\],(?=\[)")


@functools.cache
def _adapter() -> TypeAdapter[list[Chunk]]:
    return TypeAdapter(list[Chunk])


class ChunkTable(Sequence[Chunk]):
    """The chunks of a stream, in order. A table equals a tuple of the same chunks."""

    __slots__ = ("_hashes", "_key_numbers", "_keys", "_sizes")

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        # Each row has the plain and stored size, the plain and stored hash, and the number of the key id.
        self._sizes, self._hashes, self._keys = array("I"), bytearray(), array("I")
        self._key_numbers: dict[str | None, int] = {}
        for start in range(0, len(chunks), _ROWS):
            self._extend(chunks[start : start + _ROWS])

    @classmethod
    def parse(cls, rows: memoryview) -> Self:
        """Return the chunk table in `rows`, which is a compact JSON array of the rows, including its brackets.

        Raises: ValidationError if the rows are not chunks.
        """
        table, at, end = cls(), 1, len(rows) - 1
        while at < end:
            found = _NEXT_ROW.search(rows, min(at + _PIECE, end), end)
            stop = found.start() + 1 if found is not None else end
            table._extend(_adapter().validate_json(b"[%b]" % bytes(rows[at:stop])))
            at = stop + 1
        return table

    def _extend(self, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        plain_sizes, plain_hashes, stored_sizes, stored_hashes, key_ids = zip(*chunks, strict=True)
        for key_id in dict.fromkeys(key_ids):
            self._key_numbers.setdefault(key_id, len(self._key_numbers))
        self._sizes.extend(chain.from_iterable(zip(plain_sizes, stored_sizes, strict=True)))
        self._hashes += bytes.fromhex("".join(chain.from_iterable(zip(plain_hashes, stored_hashes, strict=True))))
        self._keys.extend(map(self._key_numbers.__getitem__, key_ids))

    @property
    def stored_size(self) -> int:
        """The size of the chunks in the store, in bytes."""
        return sum(self._sizes[1::2])

    @property
    def key_ids(self) -> tuple[str | None, ...]:
        """The set of the chunks' key ids. None is in the set if a chunk is not encrypted."""
        return tuple(self._key_numbers)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Chunk]:
        key_ids, sizes = self.key_ids, iter(self._sizes)
        for number, (plain_size, stored_size, key) in enumerate(zip(sizes, sizes, self._keys, strict=True)):
            yield Chunk(plain_size, self._hash(2 * number), stored_size, self._hash(2 * number + 1), key_ids[key])

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Chunk, ...]: ...
    def __getitem__(self, at: int | slice) -> Chunk | tuple[Chunk, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(len(self))))
        number = range(len(self))[at]
        plain_size, stored_size = self._sizes[2 * number : 2 * number + 2]
        key_id = next(islice(self._key_numbers, self._keys[number], None))
        return Chunk(plain_size, self._hash(2 * number), stored_size, self._hash(2 * number + 1), key_id)

    def _hash(self, number: int) -> str:
        return self._hashes[number * _HASH : (number + 1) * _HASH].hex()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ChunkTable):
            return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)
        if isinstance(other, tuple):
            return len(self) == len(other) and all(own == its for own, its in zip(self, other, strict=True))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"ChunkTable({len(self)} chunks, {list(islice(self, 2))}…)"


class ChunkTotals(ChunkTable):
    """The totals of a chunk table whose rows were checked and discarded: number, stored size and key ids."""

    __slots__ = ("_count", "_stored")

    def __init__(self, chunks: Sequence[Chunk] = ()) -> None:
        self._count = self._stored = 0
        super().__init__(chunks)

    def _extend(self, chunks: Sequence[Chunk]) -> None:
        self._count += len(chunks)
        self._stored += sum(chunk.stored_size for chunk in chunks)
        self._key_numbers |= dict.fromkeys((chunk.key_id for chunk in chunks), 0)

    @property
    def stored_size(self) -> int:
        return self._stored

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> NoReturn:
        raise TypeError("the rows of this table were dropped")

    def __getitem__(self, at: object) -> NoReturn:
        raise TypeError("the rows of this table were dropped")


class ObjectivesPart(ObjectiveSettings):
    """The configured objectives of the host at the time of a backup. Unknown objectives are ignored.

    Objectives for copies are omitted, because they contain repository names from that host's configuration.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_copies(cls, read: object) -> object:
        return {key: value for key, value in read.items() if key != "copies"} if isinstance(read, dict) else read

    @classmethod
    def of(cls, settings: ObjectiveSettings) -> Self:
        """Return the objectives of a configuration, without the objectives for copies."""
        return cls.model_validate(settings.model_dump())


class OtherSourcePart(Part):
    """A source of an unknown kind.

    Backups of such a source are listed, retained, verified, copied and removed like other backups. All fields are kept
    unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=False)

    kind: str = Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")

    def summary(self) -> OtherSourcePart:
        """Return only the kind of the source."""
        return OtherSourcePart(kind=self.kind)


def _source_tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if kind in ("server", "vm") else "other"


SourcePart = Annotated[
    Annotated[ServerSourcePart, Tag("server")]
    | Annotated[MachineSourcePart, Tag("vm")]
    | Annotated[OtherSourcePart, Tag("other")],
    Discriminator(_source_tag),
]
"""The source of a backup; `kind` selects its class."""


MOST_RIGHTS = 1000


class RightPart(Part):
    """One right that root granted on a dataset (zfs-allow(8)): the scope, the holder and the permission.

    `name` is the name or number of the account, or the name of the permission set.
    """

    scope: Literal["set", "create", "local", "descendants", "both"]
    who: Literal["", "user", "group", "everyone"]
    name: Annotated[ShortLine, Field(pattern=r"^([^-,\s][^,]{0,127})?$")]
    permission: str = Field(pattern=r"^@?[A-Za-z0-9_.:@+][A-Za-z0-9_.:@+-]{0,254}$")


class SitePart(Part):
    """Settings that administrators made on a dataset: locally set properties and granted rights.

    A restore prints these settings for a person, but does not apply them.
    """

    properties: dict[PropertyName, PropertyValue] = Field(default_factory=dict)
    rights: tuple[RightPart, ...] = Field(default=(), max_length=MOST_RIGHTS)


class FilesystemType(Part):
    """The facts about a volume that is a filesystem: its mount point, and the ZFS properties that a restore sets.

    `encryption` is the ZFS cipher at the time of the backup (None if not encrypted). `site` is None if the backup did
    not record the administrators' settings.
    """

    kind: Literal["filesystem"] = "filesystem"
    mountpoint: MountPoint
    properties: dict[PropertyName, PropertyValue]
    encryption: ShortLine | None = None
    site: SitePart | None = None


class ZvolType(Part):
    """The facts about a volume that is a zvol: its size and block size in bytes, and the ZFS properties to restore.

    `encryption` and `site` have the same meaning as for a filesystem.
    """

    kind: Literal["zvol"] = "zvol"
    volsize: int = Field(gt=0, lt=2**63)
    volblocksize: int = Field(gt=0, lt=2**31)
    properties: dict[PropertyName, PropertyValue]
    encryption: ShortLine | None = None
    site: SitePart | None = None


VolumeType = Annotated[FilesystemType | ZvolType, Field(discriminator="kind")]
"""The kind of a volume's dataset, with the facts about that kind."""


class KeyPart(Part):
    """A data key in its stored form, wrapped for the given age recipients.

    Each recipient's identity can open the data key.
    """

    id: KeyId
    recipients: tuple[ShortLine, ...]
    wrapped: AgeFile


class VolumePart(Part):
    """One volume's stream.

    `from_guid` is None for a full stream. Sizes are in bytes. The chunks are in the order of the stream.

    `dataset` is the volume of the source. `sent_from` is set only if the stream was sent from the scratch dataset of a
    consolidation.
    """

    role: RoleName
    dataset: DatasetName
    sent_from: DatasetName | None = None
    snapshot: SnapshotName
    guid: Guid
    from_guid: Guid | None
    send_flags: tuple[SendFlag, ...]
    features: Count
    type: VolumeType
    codec: Codec
    plain_size: Count
    sha256: Sha256
    chunks: Annotated[Sequence[Chunk], AfterValidator(ChunkTable), PlainSerializer(tuple)]

    @property
    def filesystem(self) -> FilesystemType:
        """The volume's filesystem properties. Raises PreflightError if the volume is not a filesystem."""
        if isinstance(self.type, FilesystemType):
            return self.type
        raise PreflightError(
            f"volume {self.role} ({self.dataset}) is a {self.type.kind}, not a filesystem",
            hint="use a backup of a server on filesystems with this command",
        )

    @property
    def is_raw(self) -> bool:
        """Whether the blocks in the stream are encrypted as in the pool."""
        return form_of(self.send_flags) is SendForm.RAW

    @property
    def chunk_count(self) -> int:
        return len(self.chunks)

    @property
    def table(self) -> ChunkTable:
        """The chunks as a table."""
        return self.chunks if isinstance(self.chunks, ChunkTable) else ChunkTable(self.chunks)

    @property
    def stored_size(self) -> int:
        return self.table.stored_size

    @property
    def full_name(self) -> str:
        """The full name of the sent snapshot."""
        return f"{self.sent_from or self.dataset}@{self.snapshot}"


class SentVolume(Protocol):
    """A volume whose snapshot `full_name` is or was sent."""

    @property
    def role(self) -> str: ...
    @property
    def full_name(self) -> str: ...
    @property
    def send_flags(self) -> tuple[str, ...]: ...
    @property
    def guid(self) -> int: ...
    @property
    def from_guid(self) -> int | None: ...
    @property
    def type(self) -> VolumeType: ...


def expected_stream(volume: SentVolume, features: int | None = None) -> ExpectedStream:
    """Return the expected BEGIN record of the volume's stream.

    `features` is None if the stream has not been sent yet.
    """
    kind = DatasetKind.FILESYSTEM if isinstance(volume.type, FilesystemType) else DatasetKind.ZVOL
    is_raw = form_of(volume.send_flags) is SendForm.RAW
    return ExpectedStream(volume.full_name, kind, volume.guid, volume.from_guid or 0, features, is_raw)


class Manifest(Part):
    """A backup: its identity, its source, its data keys and the streams of its volumes.

    `run_id` is the id of the run that started the backup; a later run may have finished it. `host` and `objectives` are
    the name and the configured objectives of the host that started the backup; older backups have neither. `sequence`
    is the backup's sequence number within the instance (`planning/creation_order.py`); older backups have no number.
    """

    format: Literal[1] = 1
    backup_id: BackupId
    instance: InstanceName
    repository_id: RepositoryId
    created: Moment
    tool_version: ShortLine
    run_id: RunId | None = None
    host: Words = ""
    objectives: ObjectivesPart | None = None
    zfs_version: ShortLine
    pool_guid: Guid
    createtxg: Guid
    sequence: SequenceNumber | None = None
    source: SourcePart
    keys: tuple[KeyPart, ...] = ()
    volumes: tuple[VolumePart, ...]

    @property
    def encrypted(self) -> tuple[str, ...]:
        """The datasets that ZFS encrypted at the time of the backup, but whose streams were sent decrypted."""
        return tuple(v.dataset for v in self.volumes if v.type.encryption is not None and not v.is_raw)

    @property
    def raw(self) -> tuple[str, ...]:
        """The datasets whose blocks are still encrypted in the stream.

        The received datasets need the same ZFS keys.
        """
        return tuple(volume.dataset for volume in self.volumes if volume.is_raw)

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
        """Return the volume with the role; None if the backup has none."""
        return next((volume for volume in self.volumes if volume.role == role), None)

    @property
    def writer(self) -> str:
        """The identity of the source, for example a server's UUID."""
        return writer_of(self.source, self.pool_guid)

    def guids(self) -> dict[str, int]:
        """Return the snapshot GUID of each role."""
        return {volume.role: volume.guid for volume in self.volumes}


def writer_of(source: SourcePart, pool_guid: int) -> str:
    """Return the identity of a backup's source.

    A virtual machine, or a server with a UUID, is identified by its UUID, regardless of the location of its files. Any
    other source is identified by its pool. MariaDB's server_id is not unique: it is 1 on every server that does not set
    it.
    """
    if isinstance(source, MachineSourcePart):
        return f"virtual machine {source.uuid}"
    if not isinstance(source, ServerSourcePart):
        return f"{source.kind} in pool {pool_guid}"
    return source.server.server_uuid or f"server_id {source.server.server_id} in pool {pool_guid}"


class _HasSource(Protocol):
    @property
    def backup_id(self) -> str: ...
    @property
    def source(self) -> SourcePart: ...


def server_source(backup: _HasSource) -> ServerSourcePart:
    """Return a backup's source if it is a database server. Raises PreflightError if the source is of another kind."""
    if isinstance(backup.source, ServerSourcePart):
        return backup.source
    raise PreflightError(
        f"backup {backup.backup_id} is a backup of kind {backup.source.kind}, not of a database server",
        hint="choose a backup of a database server, see `zsnapdb list`",
    )


def is_of_server(backup: _HasSource) -> bool:
    """Whether the backup's source is a database server."""
    return isinstance(backup.source, ServerSourcePart)


_TABLE = re.compile(rb'(?<=[{,]"chunks":)\[\[')
_TABLE_END = re.compile(rb"\]\]")
_STAND_IN = secrets.token_hex(32)
"""The plain hash of the row that replaces a table during parsing.

The hash is random, so no writer of a manifest can know it.
"""


def _without_tables(line: memoryview, kind: type[ChunkTable]) -> tuple[bytes, list[ChunkTable]]:
    """Replace each chunk table in the line by one row. Return the new line and the tables.

    The row contains the number of the table. Only tables in the format that every version of zsnapdb stores are
    replaced.

    Raises: ValidationError if the rows of a table are not chunks.
    """
    parts: list[bytes | memoryview] = []
    tables: list[ChunkTable] = []
    at = 0
    while (begin := _TABLE.search(line, at)) and (end := _TABLE_END.search(line, begin.end())):
        parts += (line[at : begin.start()], f'[[{len(tables)},"{_STAND_IN}",0,"{_STAND_IN}",null]]'.encode())
        at = end.end()
        tables.append(kind.parse(line[begin.start() : at]))
    return b"".join((*parts, line[at:])), tables


def _parse(line: memoryview, name: str, kind: type[ChunkTable]) -> Manifest:
    """Return the manifest in the line.

    The tables are parsed separately, because their rows would otherwise need ten times the memory.

    Raises: DamagedError if the line is not a manifest.
    """
    with contextlib.suppress(ValidationError):
        text, tables = _without_tables(line, kind)
        manifest = Manifest.decode(text, name)
        rows = [volume.chunks[0] if len(volume.chunks) == 1 else NO_CHUNK for volume in manifest.volumes]
        numbers = [row.plain_size if row.plain_hash == _STAND_IN else None for row in rows]
        if [number for number in numbers if number is not None] == list(range(len(tables))):
            volumes = (
                volume if number is None else volume.model_copy(update={"chunks": tables[number]})
                for volume, number in zip(manifest.volumes, numbers, strict=True)
            )
            return manifest.model_copy(update={"volumes": tuple(volumes)})
    # Either a table is damaged, or a field outside the volumes looks like a table.
    return Manifest.decode(bytes(line), name)


def decode(line: bytes | memoryview, name: str, kind: type[ChunkTable] = ChunkTable) -> Manifest:
    """Return the manifest in the line, with chunk tables of type `kind`.

    Raises: DamagedError with the object's name if the line is not a manifest.
    """
    manifest = _parse(memoryview(line), f"manifest {name}", kind)
    if not manifest.volumes or len(manifest.guids()) < len(manifest.volumes):
        raise DamagedError(
            f"manifest {name} cannot be read: it has no volumes, or two of the same role",
            hint="the manifest was altered, or a newer zsnapdb wrote it",
        )
    return manifest
