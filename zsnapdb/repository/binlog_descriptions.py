"""The stored form of archived binlogs. Keys below <instance>/binlogs/:

    incarnations/<incarnation>.json                         one unbroken binlog history of one server; written first
    <incarnation>/files/<name>.json                         a rotated binlog; written last, never over another
    <incarnation>/chunks/<name>/<attempt>/00000001          its chunks, from 1
    <incarnation>/active/<name>/<start>-<end>.json          a segment of an active binlog, by its bytes in the file;
                                                            written after its body
    <incarnation>/segments/<name>/<start>-<end>-<attempt>   the body of a segment: one chunk

A rotated binlog has a description of its own, and its segments no longer count; they are removed afterwards,
descriptions first. Segments are read from byte 0 on, each time the longest that starts where the last one ended; so
some may be replaced by one longer segment at any time. An attempt is four random hexadecimal digits, so that no body
is ever written over another.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.errors import DamagedError
from zsnapdb.gtid import Gtids, joined
from zsnapdb.model import Flavour, parse_gtids
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.stream.chunks import Chunk, Codec


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """Return the stored form: compact JSON, UTF-8."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, body: bytes, key: str) -> Self:
        """Return what is stored in `body`; DamagedError names the key if it is not that."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "(whole)"
            raise DamagedError(
                f"{key} cannot be read: {where}: {first['msg']}", hint="it was altered, or a newer zsnapdb wrote it"
            ) from error


class Incarnation(_Part):
    """One unbroken binlog history of one server. `id` sorts by time; `reason` says why a new one was begun."""

    format: Literal[1] = 1
    id: str
    instance: str
    flavour: Flavour
    server_uuid: str | None
    server_id: int
    began: datetime
    reason: str


class HeadPart(_Part):
    """What a binlog file says of itself before its first transaction.

    `created` is when the server began it (UTC seconds), `previous_gtids` what came before it as the server prints it
    (None if it does not say), `fingerprint` the SHA-256 of its first bytes up to `end`, by which it is told from
    another file of the same name.
    """

    server_uuid: str | None
    server_id: int
    version: str
    created: int
    previous_gtids: str | None
    end: int
    fingerprint: str


class SpanPart(_Part):
    """What a stretch of a binlog file contains, from byte `start` to `end`, which is the end of a transaction or of the head.

    `gtids` are those of its transactions alone (None if it has none): a set (MySQL), or the last one of each domain
    (MariaDB). `first_commit` and `last_commit` are the earliest and latest commit time in microseconds UTC; whole
    seconds where `is_exact` is False.
    """

    start: int
    end: int
    transactions: int = 0
    gtids: str | None = None
    first_gtid: str | None = None
    last_gtid: str | None = None
    first_commit: int | None = None
    last_commit: int | None = None
    is_exact: bool = True

    def then(self, more: SpanPart, flavour: Flavour) -> SpanPart:
        """Return the stretch that is this one and, right behind it, `more`."""
        both = joined(_parsed(self.gtids, flavour), _parsed(more.gtids, flavour))
        firsts = [time for time in (self.first_commit, more.first_commit) if time is not None]
        lasts = [time for time in (self.last_commit, more.last_commit) if time is not None]
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
        )


def _parsed(text: str | None, flavour: Flavour) -> Gtids | None:
    return None if text is None else parse_gtids(flavour, text)


class Segment(_Part):
    """A segment of an active binlog: its bytes from `start` to `end`, as one chunk.

    `span` ends with the last complete transaction in it. Only a transaction longer than a chunk makes a segment end
    inside of one: then `span` ends where it starts, or before its end. `attempt` names the body's object. The first
    segment of a file has its `head`, and in `gap` what is missing before the file, in words. `is_merged` says that it
    took the place of shorter ones.
    """

    format: Literal[1] = 1
    name: str
    start: int
    end: int
    attempt: str
    span: SpanPart
    head: HeadPart | None = None
    gap: str | None = None
    codec: Codec
    chunk: Chunk
    key: KeyPart | None = None
    is_merged: bool = False


class ArchivedFile(_Part):
    """An archived binlog file: what it contains and where its bytes are.

    The archived bytes reach to `span.end`, the end of its last complete transaction; their in-use flag is cleared. A
    rotated file is whole (`size` is that of the server's file, `sha256` that over the plain hashes of its chunks, as of
    a volume's stream) and has chunks; an active one has segments. `gap` says in words what is missing right before the
    file, where something is.
    """

    format: Literal[1] = 1
    instance: str
    incarnation: str
    name: str
    flavour: Flavour
    is_rotated: bool
    head: HeadPart
    span: SpanPart
    size: int
    sha256: str
    gap: str | None = None
    codec: Codec = Codec.NONE
    attempt: str = ""
    chunks: tuple[Chunk, ...] = ()
    keys: tuple[KeyPart, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def number(self) -> int:
        """The number its name ends with, by which the files of an incarnation are ordered."""
        return number_of(self.name)

    @property
    def previous(self) -> Gtids | None:
        """What came before the file, as GTIDs; None if it does not say."""
        return _parsed(self.head.previous_gtids, self.flavour)

    @property
    def gtids(self) -> Gtids | None:
        """The GTIDs of its own transactions."""
        return _parsed(self.span.gtids, self.flavour)

    @property
    def reached(self) -> Gtids | None:
        """What is reached at the end of what is archived of it: `previous` and its own."""
        return joined(self.previous, self.gtids)

    @property
    def end(self) -> int:
        """The offset behind its last complete transaction; so many bytes are archived."""
        return self.span.end

    @property
    def start(self) -> int:
        """The offset of its first transaction: behind its head."""
        return self.head.end

    @property
    def fingerprint(self) -> str:
        """By which it is told from another file of its name."""
        return self.head.fingerprint

    @property
    def server(self) -> str:
        """By what the server that wrote it is known: its UUID (MySQL) or server id."""
        return server_name(self.head.server_uuid, self.head.server_id)

    @property
    def created(self) -> int:
        """When the server began it, seconds UTC."""
        return self.head.created

    @property
    def is_anonymous(self) -> bool:
        """Whether its transactions have no GTIDs."""
        return self.span.transactions > 0 and self.span.gtids is None

    @property
    def first_commit(self) -> int | None:
        """The earliest commit time in it, microseconds UTC."""
        return self.span.first_commit

    @property
    def last_commit(self) -> int | None:
        """The latest commit time in it, microseconds UTC."""
        return self.span.last_commit

    @property
    def stored_size(self) -> int:
        """Bytes its objects take in the store, descriptions left out."""
        chunks = (*self.chunks, *(segment.chunk for segment in self.segments))
        return sum(chunk.stored_size for chunk in chunks)


def server_name(server_uuid: str | None, server_id: int) -> str:
    """Return by what a server is known."""
    return server_uuid or f"server_id {server_id}"


def number_of(name: str) -> int:
    """Return the number at the end of a binlog's name."""
    return int(name.rpartition(".")[2])


def is_archivable(name: str) -> bool:
    """Whether a binlog's name can be part of a key."""
    return layout.is_binlog_name(name)


def covering(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the segments that lead from byte 0 as far as any do.

    `spans` are first and last bytes of segments. Each time the longest that starts where the last one ended is taken.
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
