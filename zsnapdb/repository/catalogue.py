"""Lists an instance's backups without their chunk tables. A cache on this host makes ten thousand manifests fast.

A manifest never changes, so its summary stays true as long as the manifest exists. Every call lists the store for the
manifests that exist; the cache does not answer that question. A manifest whose object has another size than the cache
says is read again. A cache that cannot be read or written is ignored.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from zsnapdb.base import whole_file
from zsnapdb.base.errors import DamagedError, NotThere
from zsnapdb.base.patterns import Moment
from zsnapdb.planning.backup.send_form import SendForm, form_of
from zsnapdb.planning.chain import in_order
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import Manifest, SourcePart, writer_of
from zsnapdb.repository.objectives_part import ObjectivesPart
from zsnapdb.repository.repository import Repository

_VERSION = 6
_READERS = 8


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class VolumeSummary(_Part):
    """One volume of a backup; sizes in bytes."""

    role: str
    dataset: str
    guid: int
    from_guid: int | None
    send_flags: tuple[str, ...]
    plain_size: int
    stored_size: int
    chunk_count: int
    sent_from: str | None = None


class Summary(_Part):
    """A manifest without chunk tables, keys and the long parts of its source."""

    backup_id: str
    instance: str
    created: Moment
    tool_version: str
    run_id: str | None = None
    host: str = ""
    objectives: ObjectivesPart | None = None
    pool_guid: int
    createtxg: int
    source: SourcePart
    volumes: tuple[VolumeSummary, ...]

    @property
    def writer(self) -> str:
        """The identity of the server or other source that was backed up."""
        return writer_of(self.source, self.pool_guid)

    @property
    def is_full(self) -> bool:
        return all(volume.from_guid is None for volume in self.volumes)

    @property
    def is_raw(self) -> bool:
        """Whether a stream of it is encrypted as its blocks were."""
        return any(form_of(volume.send_flags) is SendForm.RAW for volume in self.volumes)

    @property
    def plain_size(self) -> int:
        return sum(volume.plain_size for volume in self.volumes)

    @property
    def stored_size(self) -> int:
        return sum(volume.stored_size for volume in self.volumes)

    def volume(self, role: str) -> VolumeSummary | None:
        """Return the volume with the role, if the backup has it."""
        return next((volume for volume in self.volumes if volume.role == role), None)

    @classmethod
    def of(cls, m: Manifest) -> Summary:
        """Return the summary of a manifest."""
        whole = cls.model_validate(m, from_attributes=True)
        return whole.model_copy(update={"source": m.source.summary()})


@dataclass(frozen=True)
class Summaries:
    """The backups of an instance, oldest first, and an error for each that cannot be read, by id."""

    backups: tuple[Summary, ...]
    unreadable: Mapping[str, DamagedError]


class _Deferred(_Part):
    # Its schema has those of the summaries inside: it is built where a cache is read or written.
    model_config = ConfigDict(defer_build=True)


class _Cached(_Deferred):
    size: int
    summary: Summary


class _CacheFile(_Deferred):
    version: int
    trust: tuple[str, ...]
    entries: dict[str, _Cached]


@functools.cache
def _cache_file() -> TypeAdapter[_CacheFile]:
    # Threads that come at once build one each, and any of them serves; a deferred model is not built by two at once.
    return TypeAdapter(_CacheFile)


@dataclass(frozen=True)
class Cache:
    """Summaries of one instance's manifests in a file on this host."""

    file: Path
    trust: tuple[str, ...]
    """What the keyring trusted when the entries were read. If that has changed, the manifests are read again."""

    @classmethod
    def of(cls, folder: Path, repository: Repository, instance: str) -> Cache:
        """Return the cache of an instance in a repository, below `folder`."""
        plain = ("encrypted",) if repository.keyring.refuses_plain else ()
        return cls(folder / repository.id / f"{instance}.json", (*repository.keyring.trusted, *plain))

    def read(self) -> dict[str, _Cached]:
        """Return the entries by backup id.

        None if there is no file, if it has another version, or if the keyring trusted something else.
        """
        with contextlib.suppress(OSError, ValidationError):
            cached = _cache_file().validate_json(self.file.read_bytes())
            if (cached.version, cached.trust) == (_VERSION, self.trust):
                return cached.entries
        return {}

    def write(self, entries: dict[str, _Cached]) -> None:
        """Replace the file atomically. Errors of the file system are ignored."""
        content = _cache_file().dump_json(_CacheFile(version=_VERSION, trust=self.trust, entries=entries))
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole_file.replace_disposable(self.file, content)


def summaries(repository: Repository, instance: str, cache: Cache | None) -> Summaries:
    """Return the backups that the store lists now.

    A damaged manifest does not hide the others. RepositoryError if the store cannot be reached.
    """
    known = cache.read() if cache is not None else {}
    listed = _listed(repository, instance)
    entries = {name: known[name] for name, size in listed.items() if name in known and known[name].size == size}
    new = [name for name in listed if name not in entries]
    unreadable: dict[str, DamagedError] = {}
    vanished: list[str] = []
    for name, result in _read(repository, instance, new):
        if isinstance(result, DamagedError):
            unreadable[name] = result
        elif result is None:
            vanished.append(name)
        else:
            entries[name] = _Cached(size=listed[name], summary=result)
    if vanished:
        # These were removed after they were listed. If the store still lists one, the store is not consistent.
        for name in _listed(repository, instance).keys() & set(vanished):
            unreadable[name] = DamagedError(
                f"manifest {layout.manifest(instance, name)} is listed, but cannot be read",
                hint="the store is not consistent",
            )
    if cache is not None and (new or len(entries) != len(known)):
        cache.write(entries)
    backups = in_order(entry.summary for entry in entries.values())
    return Summaries(tuple(backups), dict(sorted(unreadable.items())))


def _listed(repository: Repository, instance: str) -> dict[str, int]:
    """Return the size in bytes of each manifest the store lists, by backup id."""
    return {listed.key.backup_id: listed.size for listed in repository.list(layout.manifests(instance))}


def _read(
    repository: Repository, instance: str, names: Sequence[str]
) -> Iterable[tuple[str, Summary | DamagedError | None]]:
    def read(backup_id: str) -> tuple[str, Summary | DamagedError | None]:
        try:
            return backup_id, Summary.of(repository.manifest(instance, backup_id))
        except DamagedError as error:
            return backup_id, error
        except NotThere:
            return backup_id, None

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifest") as pool:
        yield from pool.map(read, names)
