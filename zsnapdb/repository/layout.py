"""Keys of the repository, below its prefix. They are made and parsed here alone.

    zsnapdb.json                                           format version and repository id
    <instance>/manifests/<backup-id>.json                  written last, never over another; no manifest, no backup
    <instance>/chunks/<backup-id>/<role>/00000001          chunks, from 1
    <instance>/drills/<id>.json                            the evidence of a drill, written once
    <instance>/unfinished/<backup-id>.json                 a backup that was begun; removed when it ends
    <instance>/<name>.lock                                 leases
    <instance>/binlogs/…                                   archived binlogs: repository/binlog_descriptions.py
    <instance>/pins/<backup-id>.json                       why a backup is not pruned
    <instance>/checks/<time>-<random>.json                 the findings of one verification

Manifests lie apart from chunks so that one short listing names all good backups, however many chunks there are.

A key is a string that has the form of its kind: no text of a manifest, a binlog's description or a listing becomes a
key without it. No part of a key is empty, begins with a dot or contains a slash, so no key leads out of the prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Generic, Self, TypeVar

from zsnapdb.errors import DamagedError

_INSTANCE = r"[a-z0-9][a-z0-9_-]*"
_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}"
_ROLE = r"[a-z0-9][a-z0-9_-]{0,31}"
_BINLOG = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[0-9]+"
_SPAN = r"[0-9]{16}-[0-9]{16}"
_ATTEMPT = r"[0-9a-f]+"
_PREFIX = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)+")
_HINT = "a document of the repository was altered, or a newer zsnapdb wrote it"


class Key(str):
    """The place of one object below the repository's prefix; each kind has its own form."""

    __slots__ = ()
    _FORM: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    def __new__(cls, path: str) -> Self:
        """Return the key. DamagedError if the path does not have the form of this kind."""
        if cls._FORM.fullmatch(path) is None:
            raise DamagedError(f"{path!r} is no {cls.__name__} of a repository", hint=_HINT)
        return super().__new__(cls, path)

    @classmethod
    def parse(cls, path: str) -> Self | None:
        """Return the key, or None if the path does not have the form of this kind."""
        return super().__new__(cls, path) if cls._FORM.fullmatch(path) is not None else None

    def _part(self, number: int) -> str:
        return self.split("/")[number].removesuffix(".json")


K = TypeVar("K", bound=Key)


@dataclass(frozen=True)
class KeyPrefix(Generic[K]):
    """The beginning of all keys of a kind that lie together; it ends with a slash."""

    path: str
    kind: type[K]

    def __post_init__(self) -> None:
        if _PREFIX.fullmatch(self.path) is None:
            raise DamagedError(f"{self.path!r} is no folder of a repository", hint=_HINT)

    def parse(self, path: str) -> K | None:
        """Return the key if the path lies below this and has the form of its kind, else None."""
        return self.kind.parse(path) if path.startswith(self.path) else None


class MarkerKey(Key):
    """The place of the repository's marker."""

    __slots__ = ()
    _FORM = re.compile(r"zsnapdb\.json")


MARKER = MarkerKey("zsnapdb.json")


class _BackupKey(Key):
    """A document about one backup, named after it."""

    __slots__ = ()

    @property
    def backup_id(self) -> str:
        return self._part(2)


class ManifestKey(_BackupKey):
    """The place of a backup's manifest."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/manifests/{_ID}\.json")


class UnfinishedKey(_BackupKey):
    """The place of the note that a backup was begun."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/unfinished/{_ID}\.json")


class PinKey(_BackupKey):
    """The place of a backup's pin."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/pins/{_ID}\.json")


class ChunkKey(_BackupKey):
    """The place of one chunk of a backup."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/chunks/{_ID}/{_ROLE}/[0-9]{{8,}}")


class DrillKey(Key):
    """The place of a drill's evidence."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/drills/{_ID}\.json")

    @property
    def drill_id(self) -> str:
        return self._part(2)


class VerificationKey(Key):
    """The place of the findings of one verification."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/checks/[0-9]{{8}}T[0-9]{{6}}Z-[0-9a-f]{{8}}\.json")


class LeaseKey(Key):
    """The place of a lease."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/{_INSTANCE}\.lock")


class IncarnationKey(Key):
    """The place of the description of one unbroken binlog history."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/incarnations/{_ID}\.json")

    @property
    def incarnation(self) -> str:
        return self._part(3)


class BinlogKey(Key):
    """The place of a part of one archived binlog: of its description, a chunk or a segment."""

    __slots__ = ()

    @property
    def incarnation(self) -> str:
        return self._part(2)

    @property
    def name(self) -> str:
        """The name of the binlog."""
        return self._part(4)


class RotatedBinlogKey(BinlogKey):
    """The place of the description of a rotated binlog."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/{_ID}/files/{_BINLOG}\.json")


class BinlogChunkKey(BinlogKey):
    """The place of one chunk of a rotated binlog."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/{_ID}/chunks/{_BINLOG}/{_ATTEMPT}/[0-9]{{8,}}")

    @property
    def attempt(self) -> str:
        return self._part(5)


class SegmentKey(BinlogKey):
    """The place of the description of a segment of an active binlog."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/{_ID}/active/{_BINLOG}/{_SPAN}\.json")

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the segment in the binlog, and the one behind its last."""
        start, _, end = self._part(5).partition("-")
        return int(start), int(end)


class SegmentBodyKey(BinlogKey):
    """The place of the bytes of a segment."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/{_ID}/segments/{_BINLOG}/{_SPAN}-{_ATTEMPT}")


def is_binlog_name(name: str) -> bool:
    """Whether a binlog's name can be part of a key."""
    return re.fullmatch(_BINLOG, name) is not None


def manifests(instance: str) -> KeyPrefix[ManifestKey]:
    """Return where an instance's manifests lie."""
    return KeyPrefix(f"{instance}/manifests/", ManifestKey)


def manifest(instance: str, backup_id: str) -> ManifestKey:
    """Return the key of a backup's manifest."""
    return ManifestKey(f"{instance}/manifests/{backup_id}.json")


def all_chunks(instance: str) -> KeyPrefix[ChunkKey]:
    """Return where the chunks of all an instance's backups lie; the next part of a key is a backup id."""
    return KeyPrefix(f"{instance}/chunks/", ChunkKey)


def chunks_of_backup(instance: str, backup_id: str) -> KeyPrefix[ChunkKey]:
    """Return where all chunks of a backup lie."""
    return KeyPrefix(f"{instance}/chunks/{backup_id}/", ChunkKey)


def chunks(instance: str, backup_id: str, role: str) -> KeyPrefix[ChunkKey]:
    """Return where the chunks of one volume of a backup lie."""
    return KeyPrefix(f"{instance}/chunks/{backup_id}/{role}/", ChunkKey)


def chunk(instance: str, backup_id: str, role: str, index: int) -> ChunkKey:
    """Return the key of one chunk; `index` counts from 1."""
    return ChunkKey(f"{instance}/chunks/{backup_id}/{role}/{index:08d}")


def drills(instance: str) -> KeyPrefix[DrillKey]:
    """Return where the evidence of an instance's drills lies."""
    return KeyPrefix(f"{instance}/drills/", DrillKey)


def drill(instance: str, drill_id: str) -> DrillKey:
    """Return the key of a drill's evidence."""
    return DrillKey(f"{instance}/drills/{drill_id}.json")


def unfinished(instance: str) -> KeyPrefix[UnfinishedKey]:
    """Return where the notes about an instance's backups that were begun lie."""
    return KeyPrefix(f"{instance}/unfinished/", UnfinishedKey)


def unfinished_backup(instance: str, backup_id: str) -> UnfinishedKey:
    """Return the key of the note that a backup was begun."""
    return UnfinishedKey(f"{instance}/unfinished/{backup_id}.json")


def pins(instance: str) -> KeyPrefix[PinKey]:
    """Return where an instance's pins lie."""
    return KeyPrefix(f"{instance}/pins/", PinKey)


def pin(instance: str, backup_id: str) -> PinKey:
    """Return the key of the pin of a backup."""
    return PinKey(f"{instance}/pins/{backup_id}.json")


def verifications(instance: str) -> KeyPrefix[VerificationKey]:
    """Return where the findings of an instance's verifications lie."""
    return KeyPrefix(f"{instance}/checks/", VerificationKey)


def verification(instance: str, when: datetime, randomness: int) -> VerificationKey:
    """Return the key of the findings of a verification at that time (UTC); `randomness` has 32 bits."""
    return VerificationKey(f"{instance}/checks/{when:%Y%m%dT%H%M%SZ}-{randomness:08x}.json")


def lease(name: str) -> LeaseKey:
    """Return the key of a lease; its name begins with an instance: main/writer."""
    return LeaseKey(f"{name}.lock")


def incarnations(instance: str) -> KeyPrefix[IncarnationKey]:
    """Return where the descriptions of an instance's binlog histories lie."""
    return KeyPrefix(f"{instance}/binlogs/incarnations/", IncarnationKey)


def incarnation(instance: str, incarnation_id: str) -> IncarnationKey:
    """Return the key of the description of a binlog history."""
    return IncarnationKey(f"{instance}/binlogs/incarnations/{incarnation_id}.json")


def rotated_binlogs(instance: str, incarnation_id: str) -> KeyPrefix[RotatedBinlogKey]:
    """Return where the descriptions of a history's rotated binlogs lie."""
    return KeyPrefix(f"{instance}/binlogs/{incarnation_id}/files/", RotatedBinlogKey)


def rotated_binlog(instance: str, incarnation_id: str, name: str) -> RotatedBinlogKey:
    """Return the key of the description of a rotated binlog."""
    return RotatedBinlogKey(f"{instance}/binlogs/{incarnation_id}/files/{name}.json")


def binlog_chunks(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[BinlogChunkKey]:
    """Return where the chunks of a history's rotated binlogs lie; `names` are those of a binlog and of an attempt."""
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "chunks", *names, "")), BinlogChunkKey)


def binlog_chunk(instance: str, incarnation_id: str, name: str, attempt: str, index: int) -> BinlogChunkKey:
    """Return the key of one chunk of a rotated binlog; `index` counts from 1."""
    return BinlogChunkKey(f"{instance}/binlogs/{incarnation_id}/chunks/{name}/{attempt}/{index:08d}")


def segments(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[SegmentKey]:
    """Return where the descriptions of segments of a history's binlogs lie, or of one binlog's, by its name."""
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "active", *names, "")), SegmentKey)


def segment(instance: str, incarnation_id: str, name: str, start: int, end: int) -> SegmentKey:
    """Return the key of the description of a segment with the binlog's bytes from `start` to `end`; keys sort by start."""
    return SegmentKey(f"{instance}/binlogs/{incarnation_id}/active/{name}/{start:016d}-{end:016d}.json")


def segment_bodies(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[SegmentBodyKey]:
    """Return where the bytes of segments of a history's binlogs lie, or of one binlog's, by its name."""
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "segments", *names, "")), SegmentBodyKey)


def segment_body(instance: str, incarnation_id: str, name: str, start: int, end: int, attempt: str) -> SegmentBodyKey:
    """Return the key of the bytes of a segment; `attempt` tells bodies of the same bytes apart."""
    span = f"{start:016d}-{end:016d}"
    return SegmentBodyKey(f"{instance}/binlogs/{incarnation_id}/segments/{name}/{span}-{attempt}")
