"""Keys of the repository, below its prefix. Only this module builds and parses them.

    zsnapdb.json                                           format version and repository id
    init.lock                                              nothing: how the store answers was tried with it
    <instance>/manifests/<backup-id>.json                  manifests; written last, never over another
    <instance>/chunks/<backup-id>/<role>/00000001          chunks, from 1
    <instance>/drills/<id>-<sequence>.json                 the evidence of a drill, written once (earlier: <id>.json)
    <instance>/evidence/00000001.json                      the log of what was done, from 1, written once
    <instance>/unfinished/<backup-id>.json                 the mark of a backup that was begun; removed when it ends
    <instance>/<name>.lock                                 leases
    <instance>/binlogs/…                                   archived binlogs: repository/binlog_descriptions.py
    <instance>/pins/<backup-id>.json                       why a backup is not pruned
    <instance>/checks/<time>-<random>.json                 the findings of one verification

A backup exists if its manifest exists. Manifests lie apart from chunks so that one short listing names all backups,
however many chunks there are.

A key is a string that has the form of its kind. Text from a manifest, a binlog's description or a listing becomes a key
only if it has that form. No part of a key is empty, begins with a dot or contains a slash, so no key leads out of the
prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Generic, Self, TypeVar

from zsnapdb.base import patterns
from zsnapdb.base.errors import DamagedError

_INSTANCE = patterns.INSTANCE
_ID = patterns.BACKUP_ID
_ROLE = patterns.ROLE
_BINLOG = patterns.BINLOG
_SPAN = r"[0-9]{16}-[0-9]{16}"
_ATTEMPT = r"[0-9a-f]+"
_PREFIX = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)+")
_HINT = "a document in the repository was altered, or a newer zsnapdb wrote it"


class Key(str):
    """The place of one object below the repository's prefix. Each kind of key has its own form."""

    __slots__ = ()
    _FORM: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    def __new__(cls, path: str) -> Self:
        """Return the key. DamagedError if the path does not have the form of this kind."""
        if cls._FORM.fullmatch(path) is None:
            raise DamagedError(f"{path!r} is not a valid {cls.__name__} of a repository", hint=_HINT)
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
    """The common beginning of keys of one kind. It ends with a slash."""

    path: str
    kind: type[K]

    def __post_init__(self) -> None:
        if _PREFIX.fullmatch(self.path) is None:
            raise DamagedError(f"{self.path!r} is not a valid folder of a repository", hint=_HINT)

    def parse(self, path: str) -> K | None:
        """Return the key if the path begins with this prefix and has the form of its kind, else None."""
        return self.kind.parse(path) if path.startswith(self.path) else None


class MarkerKey(Key):
    """The place of the repository's marker."""

    __slots__ = ()
    _FORM = re.compile(r"zsnapdb\.json")


MARKER = MarkerKey("zsnapdb.json")


class ProbeKey(Key):
    """The place of the object with which a new repository proves its store."""

    __slots__ = ()
    _FORM = re.compile(r"init\.lock")


PROBE = ProbeKey("init.lock")


class _BackupKey(Key):
    """The place of an object that belongs to one backup."""

    __slots__ = ()

    @property
    def backup_id(self) -> str:
        return self._part(2)


class ManifestKey(_BackupKey):
    """The place of a backup's manifest."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/manifests/{_ID}\.json")


class UnfinishedKey(_BackupKey):
    """The place of the mark of an unfinished backup."""

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
    _FORM = re.compile(rf"{_INSTANCE}/drills/{_ID}(?:-[1-9][0-9]{{0,15}})?\.json")

    @property
    def drill_id(self) -> str:
        return "-".join(self._part(2).split("-")[:2])

    @property
    def sequence(self) -> int | None:
        """The place of the drill among those of the instance. None if an earlier version stored it."""
        number = self._part(2).removeprefix(self.drill_id)
        return int(number[1:]) if number else None


class EvidenceKey(Key):
    """The place of a record of the evidence log."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/evidence/[0-9]{{8}}\.json")

    @property
    def number(self) -> int:
        return int(self._part(2))


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


class CompleteKey(Key):
    """The place of the record until when the archive of a binlog history is complete."""

    __slots__ = ()
    _FORM = re.compile(rf"{_INSTANCE}/binlogs/{_ID}/complete\.json")

    @property
    def incarnation(self) -> str:
        return self._part(2)


class BinlogKey(Key):
    """The place of one object of an archived binlog: its description, a chunk or a segment."""

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
        """The offsets of the segment's first byte in the binlog, and of the byte after its last."""
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
    """Return the prefix of an instance's manifests."""
    return KeyPrefix(f"{instance}/manifests/", ManifestKey)


def manifest(instance: str, backup_id: str) -> ManifestKey:
    """Return the key of a backup's manifest."""
    return ManifestKey(f"{instance}/manifests/{backup_id}.json")


def all_chunks(instance: str) -> KeyPrefix[ChunkKey]:
    """Return the prefix of the chunks of all backups of an instance. The next part of a key is a backup id."""
    return KeyPrefix(f"{instance}/chunks/", ChunkKey)


def chunks_of_backup(instance: str, backup_id: str) -> KeyPrefix[ChunkKey]:
    """Return the prefix of all chunks of a backup."""
    return KeyPrefix(f"{instance}/chunks/{backup_id}/", ChunkKey)


def chunks(instance: str, backup_id: str, role: str) -> KeyPrefix[ChunkKey]:
    """Return the prefix of the chunks of one volume of a backup."""
    return KeyPrefix(f"{instance}/chunks/{backup_id}/{role}/", ChunkKey)


def chunk(instance: str, backup_id: str, role: str, index: int) -> ChunkKey:
    """Return the key of one chunk; `index` counts from 1."""
    return ChunkKey(f"{instance}/chunks/{backup_id}/{role}/{index:08d}")


def drills(instance: str) -> KeyPrefix[DrillKey]:
    """Return the prefix of the evidence of an instance's drills."""
    return KeyPrefix(f"{instance}/drills/", DrillKey)


def drill(instance: str, drill_id: str, sequence: int | None = None) -> DrillKey:
    """Return the key of a drill's evidence. A listing of the keys orders the drills."""
    number = f"-{sequence}" if sequence is not None else ""
    return DrillKey(f"{instance}/drills/{drill_id}{number}.json")


def evidence_log(instance: str) -> KeyPrefix[EvidenceKey]:
    """Return the prefix of the records of an instance's evidence log."""
    return KeyPrefix(f"{instance}/evidence/", EvidenceKey)


def evidence(instance: str, number: int) -> EvidenceKey:
    """Return the key of a record of the evidence log; `number` counts from 1."""
    return EvidenceKey(f"{instance}/evidence/{number:08d}.json")


def unfinished(instance: str) -> KeyPrefix[UnfinishedKey]:
    """Return the prefix of the marks of an instance's unfinished backups."""
    return KeyPrefix(f"{instance}/unfinished/", UnfinishedKey)


def unfinished_backup(instance: str, backup_id: str) -> UnfinishedKey:
    """Return the key of the mark of an unfinished backup."""
    return UnfinishedKey(f"{instance}/unfinished/{backup_id}.json")


def pins(instance: str) -> KeyPrefix[PinKey]:
    """Return the prefix of an instance's pins."""
    return KeyPrefix(f"{instance}/pins/", PinKey)


def pin(instance: str, backup_id: str) -> PinKey:
    """Return the key of a backup's pin."""
    return PinKey(f"{instance}/pins/{backup_id}.json")


def verifications(instance: str) -> KeyPrefix[VerificationKey]:
    """Return the prefix of the findings of an instance's verifications."""
    return KeyPrefix(f"{instance}/checks/", VerificationKey)


def verification(instance: str, when: datetime, randomness: int) -> VerificationKey:
    """Return the key of the findings of a verification at that time (UTC); `randomness` has 32 bits."""
    return VerificationKey(f"{instance}/checks/{when:%Y%m%dT%H%M%SZ}-{randomness:08x}.json")


def lease(name: str) -> LeaseKey:
    """Return the key of a lease. The name of a lease begins with its instance, such as main/writer."""
    return LeaseKey(f"{name}.lock")


def incarnations(instance: str) -> KeyPrefix[IncarnationKey]:
    """Return the prefix of the descriptions of an instance's binlog histories."""
    return KeyPrefix(f"{instance}/binlogs/incarnations/", IncarnationKey)


def incarnation(instance: str, incarnation_id: str) -> IncarnationKey:
    """Return the key of the description of a binlog history."""
    return IncarnationKey(f"{instance}/binlogs/incarnations/{incarnation_id}.json")


def complete(instance: str, incarnation_id: str) -> CompleteKey:
    """Return the key of the record until when the archive of a binlog history is complete."""
    return CompleteKey(f"{instance}/binlogs/{incarnation_id}/complete.json")


def rotated_binlogs(instance: str, incarnation_id: str) -> KeyPrefix[RotatedBinlogKey]:
    """Return the prefix of the descriptions of a history's rotated binlogs."""
    return KeyPrefix(f"{instance}/binlogs/{incarnation_id}/files/", RotatedBinlogKey)


def rotated_binlog(instance: str, incarnation_id: str, name: str) -> RotatedBinlogKey:
    """Return the key of the description of a rotated binlog."""
    return RotatedBinlogKey(f"{instance}/binlogs/{incarnation_id}/files/{name}.json")


def binlog_chunks(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[BinlogChunkKey]:
    """Return the prefix of the chunks of a history's rotated binlogs.

    `names` may give the name of a binlog, and then of an attempt, for a longer prefix.
    """
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "chunks", *names, "")), BinlogChunkKey)


def binlog_chunk(instance: str, incarnation_id: str, name: str, attempt: str, index: int) -> BinlogChunkKey:
    """Return the key of one chunk of a rotated binlog; `index` counts from 1."""
    return BinlogChunkKey(f"{instance}/binlogs/{incarnation_id}/chunks/{name}/{attempt}/{index:08d}")


def segments(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[SegmentKey]:
    """Return the prefix of the descriptions of the segments of a history's binlogs, or of one binlog, by its name."""
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "active", *names, "")), SegmentKey)


def segment(instance: str, incarnation_id: str, name: str, start: int, end: int) -> SegmentKey:
    """Return the key of the description of the segment from byte `start` to `end` of a binlog. Keys sort by `start`."""
    return SegmentKey(f"{instance}/binlogs/{incarnation_id}/active/{name}/{start:016d}-{end:016d}.json")


def segment_bodies(instance: str, incarnation_id: str, *names: str) -> KeyPrefix[SegmentBodyKey]:
    """Return the prefix of the bodies of the segments of a history's binlogs, or of one binlog, by its name."""
    return KeyPrefix("/".join((instance, "binlogs", incarnation_id, "segments", *names, "")), SegmentBodyKey)


def segment_body(instance: str, incarnation_id: str, name: str, start: int, end: int, attempt: str) -> SegmentBodyKey:
    """Return the key of the body of a segment. `attempt` distinguishes bodies of the same segment."""
    span = f"{start:016d}-{end:016d}"
    return SegmentBodyKey(f"{instance}/binlogs/{incarnation_id}/segments/{name}/{span}-{attempt}")
