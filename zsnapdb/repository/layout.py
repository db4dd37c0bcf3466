"""The keys of objects below the repository's prefix. Only this module builds and parses keys.

Each kind of key has a template, which defines the keys, their pattern, and the prefixes of listings. A backup exists
only if its manifest exists. Manifests are separate from chunks, so one short listing finds all backups, however many
chunks they have.

A key is a string that matches the pattern of its kind. Text from a manifest, a binlog's description or a listing
becomes a key only if it matches a pattern. No part of a key is empty, starts with a dot or contains a slash, so no key
is outside the prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Generic, Self, TypeVar

from zsnapdb.base import patterns
from zsnapdb.base.errors import DamagedError

_FIELDS = {
    "instance": (patterns.INSTANCE, ""),
    "lease": (patterns.INSTANCE, ""),
    "id": (patterns.BACKUP_ID, ""),
    "role": (patterns.ROLE, ""),
    "binlog": (patterns.BINLOG, ""),
    "attempt": ("[0-9a-f]+", ""),
    "index": ("[0-9]{8,}", "08d"),
    "number": ("[0-9]{8}", "08d"),
    "start": ("[0-9]{16}", "016d"),
    "end": ("[0-9]{16}", "016d"),
    "sequence": ("(?:-[1-9][0-9]{0,15})?", ""),
    "time": ("[0-9]{8}T[0-9]{6}Z", "%Y%m%dT%H%M%SZ"),
    "random": ("[0-9a-f]{8}", "08x"),
}
"""For each field of a key, the regular expression and the format specification of its value."""
_PREFIX = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)+")
_HINT = "a document in the repository was altered, or a newer zsnapdb wrote it"


class Key(str):
    """The key of one object below the repository's prefix.

    Each kind of key has its own template, with fields in braces.
    """

    __slots__ = ()
    _PIECES: ClassVar[tuple[str, ...]] = ("",)
    """The template, split into alternating texts and fields; the first and the last piece are texts."""
    _REGEX: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")

    def __init_subclass__(cls, form: str = "") -> None:
        if form:
            cls._PIECES = tuple(re.split(r"\{(\w+)\}", form))
            texts, fields = cls._PIECES[::2], cls._PIECES[1::2]
            named = (f"(?P<{field}>{_FIELDS[field][0]})" for field in fields)
            cls._REGEX = re.compile("".join(map("".join, zip(map(re.escape, texts), (*named, ""), strict=True))))

    def __new__(cls, path: str) -> Self:
        """Return the key. Raises DamagedError if the path does not match the pattern of this kind."""
        if cls._REGEX.fullmatch(path) is None:
            raise DamagedError(f"{path!r} is not a valid {cls.__name__} of a repository", hint=_HINT)
        return super().__new__(cls, path)

    @classmethod
    def parse(cls, path: str) -> Self | None:
        """Return the key, or None if the path does not match the pattern of this kind."""
        return super().__new__(cls, path) if cls._REGEX.fullmatch(path) is not None else None

    @classmethod
    def of(cls, *values: str | int | datetime) -> Self:
        """Return the key whose fields have the given values.

        Raises: DamagedError if a value does not match the pattern of its field.
        """
        return cls(cls._filled(values))

    @classmethod
    def below(cls, *values: str) -> KeyPrefix[Self]:
        """Return the prefix of the keys whose first fields have the given values: the text up to the next field."""
        return KeyPrefix(cls._filled(values), cls)

    @classmethod
    def _filled(cls, values: tuple[str | int | datetime, ...]) -> str:
        texts, fields = cls._PIECES[::2], cls._PIECES[1::2][: len(values)]
        filled = (format(value, _FIELDS[field][1]) for field, value in zip(fields, values, strict=True))
        return texts[0] + "".join(value + text for value, text in zip(filled, texts[1:], strict=False))

    def field(self, name: str) -> str:
        """Return the text of a field in the key."""
        match = self._REGEX.fullmatch(self)
        assert match is not None
        return match[name]


K = TypeVar("K", bound=Key)


@dataclass(frozen=True)
class KeyPrefix(Generic[K]):
    """The common start of keys of one kind. A prefix ends with a slash."""

    path: str
    kind: type[K]

    def __post_init__(self) -> None:
        if _PREFIX.fullmatch(self.path) is None:
            raise DamagedError(f"{self.path!r} is not a valid folder of a repository", hint=_HINT)

    def parse(self, path: str) -> K | None:
        """Return the key if the path starts with this prefix and matches the pattern of its kind, otherwise None."""
        return self.kind.parse(path) if path.startswith(self.path) else None


class MarkerKey(Key, form="zsnapdb.json"):
    """The key of the repository's marker."""

    __slots__ = ()


class ProbeKey(Key, form="init.lock"):
    """The key of the object with which a new repository tests its store."""

    __slots__ = ()


class _BackupKey(Key):
    """The key of an object that belongs to one backup."""

    __slots__ = ()

    @property
    def backup_id(self) -> str:
        return self.field("id")


class ManifestKey(_BackupKey, form="{instance}/manifests/{id}.json"):
    """The key of a backup's manifest."""

    __slots__ = ()


class UnfinishedKey(_BackupKey, form="{instance}/unfinished/{id}.json"):
    """The key of the mark of an unfinished backup."""

    __slots__ = ()


class PinKey(_BackupKey, form="{instance}/pins/{id}.json"):
    """The key of a backup's pin."""

    __slots__ = ()


class ChunkKey(_BackupKey, form="{instance}/chunks/{id}/{role}/{index}"):
    """The key of one chunk of a backup. `index` counts from 1."""

    __slots__ = ()


class DrillKey(Key, form="{instance}/drills/{id}{sequence}.json"):
    """The key of a drill's evidence."""

    __slots__ = ()

    @property
    def drill_id(self) -> str:
        return self.field("id")

    @property
    def sequence(self) -> int | None:
        """The drill's sequence number within the instance; None if an earlier version stored the drill."""
        number = self.field("sequence")
        return int(number[1:]) if number else None


class EvidenceKey(Key, form="{instance}/evidence/{number}.json"):
    """The key of a record of the evidence log. `number` counts from 1."""

    __slots__ = ()

    @property
    def number(self) -> int:
        return int(self.field("number"))


class VerificationKey(Key, form="{instance}/checks/{time}-{random}.json"):
    """The key of the findings of one verification.

    This key contains the time of the verification (UTC) and 32 random bits.
    """

    __slots__ = ()


class LeaseKey(Key, form="{instance}/{lease}.lock"):
    """The key of a lease."""

    __slots__ = ()


class _HistoryKey(Key):
    """The key of an object of one unbroken binlog history."""

    __slots__ = ()

    @property
    def incarnation(self) -> str:
        return self.field("id")


class IncarnationKey(_HistoryKey, form="{instance}/binlogs/incarnations/{id}.json"):
    """The key of the description of one unbroken binlog history."""

    __slots__ = ()


class CompleteKey(_HistoryKey, form="{instance}/binlogs/{id}/complete.json"):
    """The key of the record about the complete part of a binlog history."""

    __slots__ = ()


class BinlogKey(_HistoryKey):
    """The key of one object of an archived binlog: its description, a chunk or a segment."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.field("binlog")


class RotatedBinlogKey(BinlogKey, form="{instance}/binlogs/{id}/files/{binlog}.json"):
    """The key of the description of a rotated binlog."""

    __slots__ = ()


class BinlogChunkKey(BinlogKey, form="{instance}/binlogs/{id}/chunks/{binlog}/{attempt}/{index}"):
    """The key of one chunk of a rotated binlog. `index` counts from 1."""

    __slots__ = ()

    @property
    def attempt(self) -> str:
        return self.field("attempt")


class SegmentKey(BinlogKey, form="{instance}/binlogs/{id}/active/{binlog}/{start}-{end}.json"):
    """The key of the description of an active binlog's segment. The keys of a binlog sort by `start`."""

    __slots__ = ()

    @property
    def span(self) -> tuple[int, int]:
        """The binlog offsets of the segment's first byte and of the byte after its last byte."""
        return int(self.field("start")), int(self.field("end"))


class SegmentBodyKey(BinlogKey, form="{instance}/binlogs/{id}/segments/{binlog}/{start}-{end}-{attempt}"):
    """The key of the bytes of a segment. `attempt` distinguishes bodies of the same segment."""

    __slots__ = ()


MARKER = MarkerKey.of()
PROBE = ProbeKey.of()

# Each kind has a function that creates its key from all field values, and one that creates a prefix from the first
# values.
manifest, manifests = ManifestKey.of, ManifestKey.below
unfinished_backup, unfinished = UnfinishedKey.of, UnfinishedKey.below
pin, pins = PinKey.of, PinKey.below
chunk = ChunkKey.of
all_chunks = chunks_of_backup = chunks = ChunkKey.below
drills = DrillKey.below
evidence, evidence_log = EvidenceKey.of, EvidenceKey.below
verification, verifications = VerificationKey.of, VerificationKey.below
incarnation, incarnations = IncarnationKey.of, IncarnationKey.below
complete = CompleteKey.of
rotated_binlog, rotated_binlogs = RotatedBinlogKey.of, RotatedBinlogKey.below
binlog_chunk, binlog_chunks = BinlogChunkKey.of, BinlogChunkKey.below
segment, segments = SegmentKey.of, SegmentKey.below
segment_body, segment_bodies = SegmentBodyKey.of, SegmentBodyKey.below


def drill(instance: str, drill_id: str, sequence: int | None = None) -> DrillKey:
    """Return the key of a drill's evidence. The keys sort in the order of the drills."""
    return DrillKey.of(instance, drill_id, f"-{sequence}" if sequence is not None else "")


def lease(name: str) -> LeaseKey:
    """Return the key of a lease. The name of a lease starts with its instance, such as main/writer."""
    return LeaseKey(f"{name}.lock")


def is_binlog_name(name: str) -> bool:
    """Whether a binlog's name can be part of a key."""
    return re.fullmatch(patterns.BINLOG, name) is not None
