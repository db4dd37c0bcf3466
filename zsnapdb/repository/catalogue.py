"""The list of an instance's backups without their chunk tables.

A cache on this host makes the list fast, even with many backups.

A manifest never changes, so its summary is valid as long as the manifest exists. Every call lists the existing
manifests in the store; the cache is not used to decide which manifests exist. A manifest is read again if its version
(size and tag) differs from the version in the cache. An unreadable or unwritable cache is ignored.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.base.patterns import Moment, first_problem
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.planning.creation_order import in_order
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import UntrustedRecord
from zsnapdb.repository.layout import ManifestKey
from zsnapdb.repository.manifest import ChunkTotals, Manifest, ObjectivesPart, SourcePart
from zsnapdb.repository.objects import ListedObject
from zsnapdb.repository.repository import Repository

_VERSION = 8
_READERS = 8
_LARGE = 1 << 20
"""Manifests above this size in bytes are read one at a time. Smaller manifests are read in parallel."""


class VolumeSummary(NamedTuple):
    """One volume of a backup; sizes in bytes."""

    role: str
    dataset: str
    guid: int
    from_guid: int | None
    send_flags: tuple[str, ...]
    plain_size: int
    stored_size: int
    chunk_count: int
    sent_from: str | None


class _Described(BaseModel):
    """Facts about a backup that are slow to parse and that only a few commands need."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    source: SourcePart
    objectives: ObjectivesPart | None


class _Line(NamedTuple):
    """A summary in the format of the cache.

    It is a named tuple, because creating a model would take five times as long.
    """

    backup_id: str
    instance: str
    created: datetime
    tool_version: str
    run_id: str | None
    host: str
    pool_guid: int
    createtxg: int
    sequence: int | None
    writer: str
    """The identity of the source, for example a server's UUID."""
    described: str
    """Source and objectives as JSON, which is parsed on demand."""
    digest: str
    """SHA-256 of the manifest's stored line."""
    volumes: tuple[VolumeSummary, ...]


class Summary(_Line):
    """A manifest without chunk tables, keys and the long parts of its source."""

    @property
    def source(self) -> SourcePart:
        """The source of the backup.

        Raises: DamagedError if the cached value cannot be parsed.
        """
        return self._described.source

    @property
    def objectives(self) -> ObjectivesPart | None:
        """The objectives of the host that made the backup.

        Raises: DamagedError if the cached value cannot be parsed.
        """
        return self._described.objectives

    @property
    def _described(self) -> _Described:
        try:
            return _parsed_description(self.described)
        except ValidationError as error:
            raise DamagedError(
                f"this host's cache of backup {self.backup_id} cannot be read: {first_problem(error)}",
                hint="remove the files below /var/cache/zsnapdb; the next command creates them again",
            ) from error

    @functools.cached_property
    def is_full(self) -> bool:
        return all(volume.from_guid is None for volume in self.volumes)

    @property
    def is_raw(self) -> bool:
        """Whether a stream of the backup is raw, which means that its blocks stay encrypted by ZFS."""
        return any(form_of(volume.send_flags) is SendForm.RAW for volume in self.volumes)

    @property
    def plain_size(self) -> int:
        return sum(volume.plain_size for volume in self.volumes)

    @functools.cached_property
    def stored_size(self) -> int:
        return sum(volume.stored_size for volume in self.volumes)

    def volume(self, role: str) -> VolumeSummary | None:
        """Return the volume with the role; None if the backup has none."""
        return next((volume for volume in self.volumes if volume.role == role), None)

    @classmethod
    def read(cls, repository: Repository, instance: str, backup_id: str) -> Summary:
        """Return the summary of a manifest in the repository. This raises the same errors as `digested_manifest`."""
        return cls.of(*repository.digested_manifest(instance, backup_id, ChunkTotals))

    @classmethod
    def of(cls, m: Manifest, digest: str) -> Summary:
        """Return the summary of a manifest. `digest` is the SHA-256 of its stored line."""
        described = _Described(source=m.source.summary(), objectives=m.objectives).model_dump_json()
        volumes = tuple(VolumeSummary._make(getattr(v, name) for name in VolumeSummary._fields) for v in m.volumes)
        plain = (getattr(m, name) for name in _Line._fields if name not in ("described", "digest", "volumes"))
        return cls._make((*plain, described, digest, volumes))


@dataclass(frozen=True)
class Summaries:
    """The backups of an instance, oldest first, and an error for each unreadable backup, keyed by backup id.

    `foreign` contains the errors of intact backups that no trusted host wrote.
    """

    backups: tuple[Summary, ...]
    unreadable: Mapping[str, DamagedError]
    foreign: Mapping[str, UntrustedRecord] = field(default_factory=dict)

    @property
    def unread(self) -> Mapping[str, DamagedError]:
        """The error of each listed backup that is not used."""
        return {**self.unreadable, **self.foreign}

    @property
    def listed(self) -> frozenset[str]:
        """The ids of all listed backups."""
        return frozenset((*(backup.backup_id for backup in self.backups), *self.unread))


_Volume = tuple[str, str, int, int | None, tuple[str, ...], int, int, int, str | None]
_Cached = tuple[str, str, str, Moment, str, str | None, str, int, int, int | None, str, str, str, tuple[_Volume, ...]]
"""The version of a manifest's object, then its summary: the fields of `_Line` and of `VolumeSummary`."""


class _CacheFile(BaseModel):
    # The schema contains the schemas of all lines, so it is built only if a cache is read or written.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    version: int
    trust: tuple[str, ...]
    entries: list[_Cached]


@functools.cache
def _cache_file() -> TypeAdapter[_CacheFile]:
    # If several threads call this function at the same time, each builds a valid adapter. Two threads must not build a
    # deferred model at the same time.
    return TypeAdapter(_CacheFile)


@functools.cache
def _described() -> TypeAdapter[_Described]:
    return TypeAdapter(_Described)


@functools.lru_cache(maxsize=64)
def _parsed_description(text: str) -> _Described:
    """Return the parsed description. Only the newest results are kept: a parsed one takes ten times as much memory."""
    return _described().validate_json(text)


class KnownManifest(NamedTuple):
    """The version of a manifest's object (`ListedObject.version`), and its summary."""

    version: str
    summary: Summary


@dataclass(frozen=True)
class Cache:
    """Summaries of one instance's manifests in a file on this host.

    The first line of the file is the SHA-256 of the rest, so an altered file is not parsed.
    """

    file: Path
    trust: tuple[str, ...]
    """The keyring's rules of trust under which the entries were written.

    If the rules change, the manifests are read again.
    """

    @classmethod
    def of(cls, folder: Path, repository: Repository, instance: str) -> Cache:
        """Return the cache of an instance in a repository, below `folder`."""
        return cls(folder / repository.id / f"{instance}.json", repository.keyring.cache_trust)

    def read(self) -> dict[str, KnownManifest]:
        """Return the entries, keyed by backup id.

        The result is empty if the file does not exist, is damaged, has another version, or was written under other
        rules of trust.
        """
        with contextlib.suppress(OSError, ValidationError):
            body = unsealed(self.file.read_bytes())
            if body is None:
                return {}
            cached = _cache_file().validate_json(body)
            if (cached.version, cached.trust) == (_VERSION, self.trust):
                return {line[1]: KnownManifest(line[0], _summary(line)) for line in cached.entries}
        return {}

    def write(self, entries: Mapping[str, KnownManifest]) -> None:
        """Replace the file atomically. Errors of the file system are ignored."""
        lines: list[_Cached] = [(known.version, *known.summary) for known in entries.values()]
        body = _cache_file().dump_json(_CacheFile.model_construct(version=_VERSION, trust=self.trust, entries=lines))
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace_disposable(self.file, sealed(body))


def sealed(body: bytes) -> bytes:
    """Return the content of a cache file with the given body."""
    return _digest(body) + b"\n" + body


def unsealed(content: bytes) -> bytes | None:
    """Return the body of a cache from the content of its file; None if the file is damaged."""
    digest, _, body = content.partition(b"\n")
    return body if digest == _digest(body) else None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _summary(line: _Cached) -> Summary:
    return Summary(*line[1:-1], tuple([VolumeSummary(*volume) for volume in line[-1]]))


def summaries(repository: Repository, instance: str, cache: Cache | None) -> Summaries:
    """Return the backups that the store lists now.

    A damaged manifest does not hide other backups. Raises RepositoryError if the store cannot be reached.
    """
    known = cache.read() if cache is not None else {}
    listed = _manifest_versions(repository, instance)
    entries = {
        name: known[name]
        for name, manifest in listed.items()
        if manifest.version and name in known and known[name].version == manifest.version
    }
    new = [manifest for name, manifest in listed.items() if name not in entries]
    unreadable: dict[str, DamagedError] = {}
    foreign: dict[str, UntrustedRecord] = {}
    vanished: list[str] = []
    for name, result in _read(repository, instance, new):
        if isinstance(result, UntrustedRecord):
            foreign[name] = result
        elif isinstance(result, DamagedError):
            unreadable[name] = result
        elif result is None:
            vanished.append(name)
        else:
            entries[name] = KnownManifest(listed[name].version, result)
    if vanished:
        # These manifests were removed after the listing. If the store still lists one of them, the store is not
        # consistent.
        for name in _manifest_versions(repository, instance).keys() & set(vanished):
            unreadable[name] = DamagedError(
                f"manifest {layout.manifest(instance, name)} is listed, but cannot be read",
                hint="the store is not consistent",
            )
    if cache is not None and (new or len(entries) != len(known)):
        cache.write(entries)
    backups = in_order(entry.summary for entry in entries.values())
    return Summaries(tuple(backups), dict(sorted(unreadable.items())), dict(sorted(foreign.items())))


def manifest_of(repository: Repository, backup: Summary) -> Manifest:
    """Return the manifest of a backup.

    Raises: NotFound: the manifest was removed after it had been listed DamagedError: the manifest cannot be read, or is
    not the listed manifest
    """
    manifest, digest = repository.digested_manifest(backup.instance, backup.backup_id)
    if digest != backup.digest:
        raise DamagedError(
            f"manifest {layout.manifest(backup.instance, backup.backup_id)} differs from what this host read before",
            hint="the object was replaced; check `zsnapdb verify`, and run the command again",
        )
    return manifest


def _manifest_versions(repository: Repository, instance: str) -> dict[str, ListedObject[ManifestKey]]:
    """Return the version of each listed manifest, keyed by backup id."""
    return {listed.key.backup_id: listed for listed in repository.list(layout.manifests(instance))}


def _read(
    repository: Repository, instance: str, manifests: Sequence[ListedObject[ManifestKey]]
) -> Iterator[tuple[str, Summary | DamagedError | None]]:
    def read(backup_id: str) -> tuple[str, Summary | DamagedError | None]:
        try:
            return backup_id, Summary.read(repository, instance, backup_id)
        except DamagedError as error:
            return backup_id, error
        except NotFound:
            return backup_id, None

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifest") as pool:
        yield from pool.map(read, [one.key.backup_id for one in manifests if one.size <= _LARGE])
    yield from map(read, [one.key.backup_id for one in manifests if one.size > _LARGE])
