"""A file that caches the descriptions of archived binlogs that this host has read.

A description never changes, so a cached description is valid as long as its object exists. Every reading lists the
existing descriptions in the store; the cache is not used to decide which descriptions exist. A description is read
again if its object has another version (size and tag) than in the cache, or if this host no longer trusts it. The cache
contains no chunks. To read the bytes of a rotated binlog, this host therefore reads the description and its signature
again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base import files
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Segment
from zsnapdb.repository.repository import Repository

_VERSION = 3
_PROOF_BYTES = 65
"""The length of the cache's last line in bytes."""
_READ_BYTES = 1 << 20


class KnownFile(NamedTuple):
    """The description of a rotated binlog. In the cache, its `file` has no chunks and no data keys.

    `version` identifies the version of the description's object, `signer` is the key that signed it, and `line` is the
    SHA-256 of its line. `digest` and `stored_size` have the same meaning as in `ArchivedFile`.
    """

    version: str
    signer: str | None
    line: str
    digest: str
    stored_size: int
    file: ArchivedFile


class KnownSegment(NamedTuple):
    """The description of a segment of an incarnation.

    The other fields have the same meaning as in `KnownFile`.
    """

    version: str
    signer: str | None
    line: str
    incarnation: str
    segment: Segment


Known = KnownFile | KnownSegment


@functools.cache
def _files() -> TypeAdapter[KnownFile]:
    return TypeAdapter(KnownFile)


@functools.cache
def _segments() -> TypeAdapter[KnownSegment]:
    return TypeAdapter(KnownSegment)


def _entry(line: bytes) -> Known:
    adapter: TypeAdapter[KnownFile] | TypeAdapter[KnownSegment] = _files() if line[:1] == b"f" else _segments()
    return adapter.validate_json(line[1:])


def _line(known: Known) -> bytes:
    if isinstance(known, KnownSegment):
        return b"s%b\n" % _segments().dump_json(known)
    bare = known._replace(file=known.file.model_copy(update={"chunks": (), "keys": ()}))
    return b"f%b\n" % _files().dump_json(bare)


@dataclass(frozen=True)
class DescriptionCache:
    """The descriptions of one instance's archived binlogs, in a file on this host.

    The first line contains the version and the rules of trust. Each further line is one description; a year can have
    100,000 descriptions. The last line is the SHA-256 of all lines before it.
    """

    file: Path
    instance: str
    trust: tuple[str, ...]
    """The rules of trust under which the descriptions were read.

    If the rules have changed, the descriptions are read again.
    """

    @classmethod
    def of(cls, folder: Path, repository: Repository, instance: str) -> DescriptionCache:
        """Return the cache of an instance in a repository, below `folder`."""
        place = folder / repository.id / f"{instance}.binlogs.json"
        return cls(place, instance, repository.keyring.cache_trust)

    @property
    def _header(self) -> bytes:
        return json.dumps([_VERSION, *self.trust]).encode() + b"\n"

    def read(self) -> Iterator[Known]:
        """Yield the entries.

        There are no entries if the file is missing, has another format, or was written under other rules of trust.
        """
        with contextlib.suppress(OSError, ValidationError), self.file.open("rb") as lines:
            rest = os.fstat(lines.fileno()).st_size - _PROOF_BYTES
            if _is_proved(lines, rest) and lines.readline() == self._header:
                rest -= len(self._header)
                while rest > 0:
                    line = lines.readline()
                    rest -= len(line)
                    yield _entry(line)

    def key(self, known: Known) -> str:
        """Return the key of the described object."""
        if isinstance(known, KnownFile):
            return layout.rotated_binlog(self.instance, known.file.incarnation, known.file.name)
        segment = known.segment
        return layout.segment(self.instance, known.incarnation, segment.name, segment.start, segment.end)

    def write(self, entries: Mapping[str, Known]) -> None:
        """Replace the file atomically. Errors of the file system are ignored."""
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace_disposable(self.file, self._lines(entries))

    def _lines(self, entries: Mapping[str, Known]) -> Iterator[bytes]:
        proof = hashlib.sha256(self._header)
        yield self._header
        for entry in entries.values():
            line = _line(entry)
            proof.update(line)
            yield line
        yield b"%b\n" % proof.hexdigest().encode()


def _is_proved(lines: BinaryIO, length: int) -> bool:
    """Return whether the last line is the SHA-256 of the `length` bytes before it.

    Then set the file offset to the first line.
    """
    proof = hashlib.sha256()
    for at in range(0, length, _READ_BYTES):
        proof.update(lines.read(min(_READ_BYTES, length - at)))
    is_proved = lines.read() == b"%b\n" % proof.hexdigest().encode()
    lines.seek(0)
    return is_proved
