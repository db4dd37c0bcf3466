"""The stored form of archived binlogs. Keys below <instance>/binlogs/:

    incarnations/<incarnation>.json                         one unbroken binlog history of one server; written first
    <incarnation>/complete.json                             end of the completely archived part; replaced
    <incarnation>/files/<name>.json                         a rotated binlog; written last, never over a trusted one
    <incarnation>/chunks/<name>/<attempt>/00000001          the chunks of a rotated binlog, from 1
    <incarnation>/active/<name>/<start>-<end>.json          a segment of an active binlog, by its bytes in the file;
                                                            written after the segment's body
    <incarnation>/segments/<name>/<start>-<end>-<attempt>   the body of a segment: one chunk

After a rotation, a binlog gets its own description. From then on, its segments are ignored. Later they are removed,
descriptions first. Readers start at byte 0, and always continue with the longest segment that starts where the previous
segment ended. So one longer segment may replace several shorter segments at any time. An attempt is four random
hexadecimal digits, so that no body ever overwrites another body.

`repository_id` is the id of the repository to which a description was written. The associated data of encrypted chunks
contains this id. The chunks can therefore be read without the marker, and also in a copy of the repository.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, Self, overload

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from zsnapdb.base.domain_types import Flavour, parse_gtids, server_name
from zsnapdb.base.gtid import Gtids, joined
from zsnapdb.base.patterns import (
    Attempt,
    BackupId,
    BinlogName,
    CommitTime,
    Count,
    CreationTime,
    GtidText,
    InstanceName,
    Moment,
    RepositoryId,
    SequenceNumber,
    ServerUuid,
    ServerWord,
    Sha256,
    ShortLine,
    Words,
)
from zsnapdb.planning.binlog.archive_times import MOST_STRETCHES, Sighting, Stretch, with_stretch
from zsnapdb.planning.binlog.created_tables import MOST_MADE, RecordedTable, fits
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.objects import Part
from zsnapdb.stream.chunks import Chunk, Codec


class HistoryEnd(Part):
    """The end of another history when a history began: its newest binlog, and the transactions in this binlog."""

    incarnation: BackupId
    name: BinlogName
    transactions: Count


class Incarnation(Part):
    """One unbroken binlog history of one server. `reason` explains why the history starts.

    `sequence` is the history's sequence number within the instance. Earlier versions stored no sequence. If the data of
    the server comes from a restore that replaced production, `restore` is the id of the restore. `taken_back` contains
    the GTIDs of other servers that were archived when the first history after this restore began (MySQL).

    `ends` contains the ends of the newest other histories when this history began. `overtakes` is the history of
    another writer that this history follows, because that history had overtaken the server's previous history.
    """

    format: Literal[1] = 1
    id: BackupId
    repository_id: RepositoryId
    instance: InstanceName
    flavour: Flavour
    server_uuid: ServerUuid | None
    server_id: Count
    began: Moment
    reason: Words
    sequence: SequenceNumber | None = None
    restore: BackupId | None = None
    taken_back: GtidText | None = None
    ends: tuple[HistoryEnd, ...] = ()
    overtakes: BackupId | None = None


class HeadPart(Part):
    """The facts in the head of a binlog file. The head ends before the first transaction.

    - `created`: time when the server created the file (seconds since 1970, UTC).
    - `previous_gtids`: the GTIDs of all earlier files, in the server's format (None: the head has none).
    - `fingerprint`: SHA-256 of the file's first bytes up to `end`, which distinguishes files of the same name.
    """

    server_uuid: ServerUuid | None
    server_id: Count
    version: ShortLine
    created: CreationTime
    previous_gtids: GtidText | None
    end: Count
    fingerprint: Sha256


class UndatedPart(Part):
    """Transactions from byte `start` to `end` of a binlog. Their events do not contain their commit times.

    The archiver observed that they were committed between `earliest` (None if unknown) and `latest`, in microseconds
    UTC.
    """

    start: Count
    end: Count
    earliest: CommitTime | None = None
    latest: CommitTime

    @classmethod
    def of(cls, stretch: Stretch) -> UndatedPart:
        """Return the stored form of a stretch of transactions."""
        seen = stretch.sighting
        return cls(start=stretch.start, end=stretch.end, earliest=seen.earliest, latest=seen.latest)

    @property
    def stretch(self) -> Stretch:
        """The stretch of transactions that this part describes."""
        return Stretch(self.start, self.end, Sighting(self.earliest, self.latest))


class CreatedTablePart(Part):
    """A table whose engine is in no binlog event, and its engine, collation and row format as the server reported them.

    The event at `offset` created the table.
    """

    offset: Count
    engine: ServerWord
    collation: ServerWord | None = None
    row_format: ServerWord | None = None

    @property
    def record(self) -> RecordedTable:
        """The table's properties, from the server."""
        return RecordedTable(self.engine, self.collation, self.row_format)


class SpanPart(Part):
    """The contents of a stretch of a binlog file, from byte `start` to `end`.

    - `end`: the end of a transaction, or the end of the file's head if the stretch contains no transaction.
    - `gtids`: GTIDs of the stretch's own transactions (None: no GTIDs). MySQL: the set; MariaDB: the last GTID of each
      domain.
    - `first_commit`, `last_commit`: earliest and latest commit time in microseconds UTC, rounded to seconds if
      `is_exact` is False. For transactions in `undated`, the bounds of the commit times are used.
    - `made`: tables that were created without ENGINE, and whose engines the archiver read from the server.
    - `without_engine`: offsets of statements without ENGINE, if the binlog lacks the table's options, or if the table's
      transactions show that the engine is not transactional.
    """

    start: Count
    end: Count
    transactions: Count = 0
    gtids: GtidText | None = None
    first_gtid: GtidText | None = None
    last_gtid: GtidText | None = None
    first_commit: CommitTime | None = None
    last_commit: CommitTime | None = None
    is_exact: bool = True
    undated: Annotated[tuple[UndatedPart, ...], Field(max_length=MOST_STRETCHES)] = ()
    made: Annotated[tuple[CreatedTablePart, ...], Field(max_length=MOST_MADE)] = ()
    without_engine: Annotated[tuple[Count, ...], Field(max_length=MOST_MADE)] = ()

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The stretches whose events do not contain the commit times."""
        return tuple(part.stretch for part in self.undated)

    def has_unknown_engine(self, start: int, stop: int | None) -> bool:
        """Whether a table with unknown options was created between the offsets `start` and `stop`.

        The unknown option is the engine of a non-transactional table, or an option that the server omitted from the
        logged statement.
        """
        known = {part.offset for part in self.made if part.collation or not fits(part.engine, is_transactional=True)}
        return any(start <= at and (stop is None or at < stop) for at in self.without_engine if at not in known)

    def with_made(self, made: Sequence[CreatedTablePart]) -> SpanPart:
        """Return a copy with the given tables, whose engines the server reported."""
        return self.model_copy(update={"made": tuple(made)[:MOST_MADE]})

    def then(self, more: SpanPart, flavour: Flavour) -> SpanPart:
        """Return the stretch that consists of this stretch and `more`, which directly follows it."""
        both = joined(_parsed(self.gtids, flavour), _parsed(more.gtids, flavour))
        firsts = [time for time in (self.first_commit, more.first_commit) if time is not None]
        lasts = [time for time in (self.last_commit, more.last_commit) if time is not None]
        stretches = self.stretches
        for stretch in more.stretches:
            stretches = with_stretch(stretches, stretch)
        return SpanPart(
            start=self.start,
            end=more.end,
            transactions=self.transactions + more.transactions,
            gtids=None if both is None else str(both),
            first_gtid=self.first_gtid or more.first_gtid,
            last_gtid=more.last_gtid or self.last_gtid,
            first_commit=min(firsts, default=None),
            last_commit=max(lasts, default=None),
            is_exact=self.is_exact and more.is_exact,
            undated=tuple(UndatedPart.of(stretch) for stretch in stretches),
            made=(*self.made, *more.made)[:MOST_MADE],
            without_engine=(*self.without_engine, *more.without_engine)[:MOST_MADE],
        )


def _parsed(text: str | None, flavour: Flavour) -> Gtids | None:
    return None if text is None else parse_gtids(flavour, text)


class Segment(Part):
    """A segment of an active binlog: its bytes from `start` to `end`, as one chunk.

    - `span`: contents of the segment, up to its last complete transaction. A segment ends inside a transaction only if
      the transaction is longer than a chunk. In that case, `span` may be empty, and ends before the segment's end.
    - `attempt`: part of the name of the body.
    - `head`: head of the file; set only in the file's first segment.
    - `gap`: text about the missing part before the file; set only in the file's first segment.
    - `is_merged`: the segment replaced shorter segments.
    - `seen`: time at which the archiver read the binlog (microseconds UTC; None: not recorded). Every transaction after
      the segment was committed later.
    """

    format: Literal[1] = 1
    repository_id: RepositoryId
    name: BinlogName
    start: Count
    end: Count
    attempt: Attempt
    span: SpanPart
    head: HeadPart | None = None
    gap: Words | None = None
    codec: Codec
    chunk: Chunk
    key: KeyPart | None = None
    is_merged: bool = False
    seen: CommitTime | None = None

    def check_gtids(self, flavour: Flavour) -> None:
        """Raise ValueError if GTIDs in the description do not have the format of the server's flavour."""
        _parsed(self.span.gtids, flavour)
        _parsed(self.head.previous_gtids if self.head is not None else None, flavour)


ReadChunks = Callable[[str, str, str], "tuple[tuple[Chunk, ...], tuple[KeyPart, ...]]"]
"""Returns the chunks of a rotated binlog and their data keys from its signed description.

Its arguments are the incarnation, the name of the binlog, and the SHA-256 of the description's line. It raises
DamagedError if the description is missing or has changed.
"""


class UnreadChunks(Sequence[Chunk]):
    """The chunks of a rotated binlog whose cached description contains neither chunks nor data keys.

    The first use reads the chunks and the data keys from the repository.

    `digest` is the digest of the file. `stored_size` is the size of the chunks in the store, in bytes. `place` contains
    the arguments for `read`.
    """

    __slots__ = ("_known", "_place", "_read", "digest", "stored_size")

    def __init__(self, digest: str, stored_size: int, read: ReadChunks, place: tuple[str, str, str]) -> None:
        self.digest, self.stored_size = digest, stored_size
        self._read, self._place = read, place
        self._known: tuple[tuple[Chunk, ...], tuple[KeyPart, ...]] | None = None

    @property
    def keys(self) -> tuple[KeyPart, ...]:
        return self._description[1]

    @property
    def _description(self) -> tuple[tuple[Chunk, ...], tuple[KeyPart, ...]]:
        if self._known is None:
            self._known = self._read(*self._place)
        return self._known

    @property
    def _chunks(self) -> tuple[Chunk, ...]:
        return self._description[0]

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Chunk, ...]: ...
    def __getitem__(self, at: int | slice) -> Chunk | tuple[Chunk, ...]:
        return self._chunks[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UnreadChunks):
            return self.digest == other.digest
        return self._chunks == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._chunks)


class UnreadKeys(Sequence[KeyPart]):
    """The data keys of unread chunks."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: UnreadChunks) -> None:
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._chunks.keys)

    @overload
    def __getitem__(self, at: int) -> KeyPart: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[KeyPart, ...]: ...
    def __getitem__(self, at: int | slice) -> KeyPart | tuple[KeyPart, ...]:
        return self._chunks.keys[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UnreadKeys):
            # The digest of the file contains the hashes of the encrypted chunks.
            return self._chunks == other._chunks
        return self._chunks.keys == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._chunks.keys)


class ArchivedFile(Part):
    """An archived binlog file: its contents, and the objects with its bytes.

    The archived bytes end at `span.end`, the end of the file's last complete transaction. In these bytes, the in-use
    flag is cleared. A rotated file is complete and has chunks; an active file has segments.

    - `size`: size of the server's file in bytes, for a rotated file.
    - `sha256`: hash over the plain hashes of the chunks, as for a volume's stream.
    - `gap`: text about the missing part directly before the file.
    - `seen`: every transaction after the file was committed later than this time (microseconds UTC; None: not
      recorded).
    """

    format: Literal[1] = 1
    repository_id: RepositoryId
    instance: InstanceName
    incarnation: BackupId
    name: BinlogName
    flavour: Flavour
    is_rotated: bool
    head: HeadPart
    span: SpanPart
    size: Count
    sha256: Sha256 | Literal[""]
    gap: Words | None = None
    codec: Codec = Codec.NONE
    attempt: Attempt | Literal[""] = ""
    chunks: Annotated[Sequence[Chunk], AfterValidator(tuple), PlainSerializer(tuple)] = ()
    keys: Annotated[Sequence[KeyPart], AfterValidator(tuple), PlainSerializer(tuple)] = ()
    segments: tuple[Segment, ...] = ()
    seen: CommitTime | None = None

    @model_validator(mode="after")
    def _gtids_are_of_the_flavour(self) -> Self:
        _ = self.reached
        return self

    @property
    def number(self) -> int:
        """The number at the end of the file's name, which orders the files of an incarnation."""
        return number_of(self.name)

    @property
    def previous(self) -> Gtids | None:
        """The GTIDs of all earlier files; None if the head contains no GTIDs."""
        return _parsed(self.head.previous_gtids, self.flavour)

    @property
    def gtids(self) -> Gtids | None:
        """The GTIDs of the file's own transactions."""
        return _parsed(self.span.gtids, self.flavour)

    @property
    def reached(self) -> Gtids | None:
        """The GTIDs at the end of the archived bytes, including the GTIDs of all earlier files."""
        return joined(self.previous, self.gtids)

    @property
    def end(self) -> int:
        """The offset of the end of the last complete transaction: the number of archived bytes."""
        return self.span.end

    @property
    def start(self) -> int:
        """The offset of the first transaction: the end of the head."""
        return self.head.end

    @property
    def fingerprint(self) -> str:
        """The hash that distinguishes the file from other files of the same name."""
        return self.head.fingerprint

    @property
    def server(self) -> str:
        """The name of the server that wrote the file: its UUID (MySQL) or its server id."""
        return server_name(self.head.server_uuid, self.head.server_id)

    @property
    def created(self) -> int:
        """Time when the server created the file, in seconds UTC."""
        return self.head.created

    @property
    def is_anonymous(self) -> bool:
        """Whether the file has transactions without GTIDs."""
        return self.span.transactions > 0 and self.span.gtids is None

    @property
    def first_commit(self) -> int | None:
        """The earliest commit time in the file, in microseconds UTC."""
        return self.span.first_commit

    @property
    def last_commit(self) -> int | None:
        """The latest commit time in the file, in microseconds UTC."""
        return self.span.last_commit

    @property
    def digest(self) -> str:
        """The SHA-256 over the location, the hashes and the times of a rotated file.

        The digest is the same in every version of zsnapdb.
        """
        if isinstance(self.chunks, UnreadChunks):
            return self.chunks.digest
        facts = (self.repository_id, self.incarnation, self.name, self.size, self.end, self.sha256, self.fingerprint)
        times = (self.created, self.first_commit, self.last_commit)
        chunks = (chunk.stored_sha256 for chunk in self.chunks)
        text = "\n".join(str(fact) for fact in (*facts, *times, self.attempt, *chunks))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def stored_size(self) -> int:
        """The size in bytes of the file's objects in the store, without descriptions."""
        if isinstance(self.chunks, UnreadChunks):
            return self.chunks.stored_size
        chunks = (*self.chunks, *(segment.chunk for segment in self.segments))
        return sum(chunk.stored_size for chunk in chunks)


class CompleteRecord(Part):
    """The end of the part of an incarnation that is completely archived.

    The archiver replaces the record as often as the objectives require.

    Every transaction that the server committed up to `until` (microseconds UTC, by the server's clock) is before byte
    `end` of the binlog `name`. If the archive does not reach that byte, the record is ignored.
    """

    format: Literal[1] = 1
    repository_id: RepositoryId
    instance: InstanceName
    incarnation: BackupId
    name: BinlogName
    end: Count
    until: CommitTime


def number_of(name: str) -> int:
    """Return the number at the end of a binlog's name."""
    return int(name.rpartition(".")[2])


def is_archivable(name: str) -> bool:
    """Whether a binlog's name can be part of a key."""
    return layout.is_binlog_name(name)


def covering(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the spans that cover the file from byte 0 without a gap.

    `spans` are the start and end offsets of segments. The next span is always the longest that starts at the end of the
    previous span.
    """
    longest: dict[int, int] = {}
    for start, end in spans:
        if end > start:
            longest[start] = max(end, longest.get(start, 0))
    chosen, at = [], 0
    while at in longest:
        chosen.append((at, longest[at]))
        at = longest[at]
    return tuple(chosen)
