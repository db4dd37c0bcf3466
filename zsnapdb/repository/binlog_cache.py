"""The descriptions of archived binlogs that this host has read, in a file.

A description never changes, so it stays true as long as its object exists. Every reading lists the store for the
descriptions that exist; the cache does not answer that question. A description whose object is another version than the
cache says (by size and tag) is read again, and so is one that this host does not believe any more. The cache
has no chunks: to read the bytes of a rotated binlog, this host reads the description and its signature again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from zsnapdb.base import atomic_file
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Segment
from zsnapdb.repository.catalogue import sealed, unsealed
from zsnapdb.repository.repository import Repository

_VERSION = 1


class KnownFile(NamedTuple):
    """The description of a rotated binlog; `file` is without its chunks.

    `version` identifies its object, `signer` is the key of its signature. `line` is the SHA-256 of its line. `digest`
    and `stored_size` are those of the file.
    """

    version: str
    signer: str | None
    line: str
    digest: str
    stored_size: int
    file: ArchivedFile


class KnownSegment(NamedTuple):
    """The description of a segment of an incarnation; the other fields are those of a rotated binlog."""

    version: str
    signer: str | None
    line: str
    incarnation: str
    segment: Segment


Known = KnownFile | KnownSegment


class _CacheFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    version: int
    trust: tuple[str, ...]
    files: list[KnownFile]
    segments: list[KnownSegment]


@functools.cache
def _cache_file() -> TypeAdapter[_CacheFile]:
    return TypeAdapter(_CacheFile)


@dataclass(frozen=True)
class DescriptionCache:
    """The descriptions of one instance's archived binlogs, in a file on this host."""

    file: Path
    instance: str
    trust: tuple[str, ...]
    """The rules of trust when the descriptions were read. If they have changed, the descriptions are read again."""

    @classmethod
    def of(cls, folder: Path, repository: Repository, instance: str) -> DescriptionCache:
        """Return the cache of an instance in a repository, below `folder`."""
        place = folder / repository.id / f"{instance}.binlogs.json"
        return cls(place, instance, repository.keyring.cache_trust)

    def read(self) -> dict[str, Known]:
        """Return the entries by key. Empty if the file does not exist, has another form, or belongs to other trust."""
        with contextlib.suppress(OSError, ValidationError):
            body = unsealed(self.file.read_bytes())
            cached = _cache_file().validate_json(body) if body is not None else None
            if cached is not None and (cached.version, cached.trust) == (_VERSION, self.trust):
                entries: tuple[Known, ...] = (*cached.files, *cached.segments)
                return {self.key(entry): entry for entry in entries}
        return {}

    def key(self, known: Known) -> str:
        """Return the key of the described object."""
        if isinstance(known, KnownFile):
            return layout.rotated_binlog(self.instance, known.file.incarnation, known.file.name)
        segment = known.segment
        return layout.segment(self.instance, known.incarnation, segment.name, segment.start, segment.end)

    def write(self, entries: Mapping[str, Known]) -> None:
        """Replace the file atomically. Errors of the file system are ignored."""
        content = _CacheFile.model_construct(
            version=_VERSION,
            trust=self.trust,
            files=[entry for entry in entries.values() if isinstance(entry, KnownFile)],
            segments=[entry for entry in entries.values() if isinstance(entry, KnownSegment)],
        )
        body = _cache_file().dump_json(content)
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.replace_disposable(self.file, sealed(body))
