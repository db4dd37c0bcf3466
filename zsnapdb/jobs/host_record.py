"""The record of what this host stored in a repository: files below the host's state folder.

Backup, archiver and prune write the record, each after its change of the repository is confirmed; a removal is written
before it begins. A file is replaced atomically and is durable on return. Every command that reads a repository asks
`findings` what the repository lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from zsnapdb.errors import DamagedError, ZsnapdbError
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.set_properties import (
    BACKUP_PROPERTY,
    INSTANCE_PROPERTY,
    REPOSITORY_PROPERTY,
    STATE_PROPERTY,
    STORED,
    snapshot_name,
)
from zsnapdb.model import is_backup_id
from zsnapdb.planning.chain import Link
from zsnapdb.planning.repository import host_record
from zsnapdb.planning.repository.host_record import (
    ArchivedPosition,
    BackupRecord,
    LocalBackup,
    MissingBackup,
    RecordedBackup,
    RecordedVolume,
    RecordPart,
    RemovedBackup,
    StoredFinding,
    StoredKind,
)
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import server_name
from zsnapdb.repository.manifest import Manifest, ServerSourcePart
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import snapshots

P = TypeVar("P", bound=RecordPart)

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BACKUPS, _ARCHIVE = "backups.json", "archive.json"


@dataclass(frozen=True)
class HostRecord:
    """The record of one instance in one repository. `url` is where this host stores now."""

    folder: Path
    instance: str
    repository_id: str
    url: str

    @classmethod
    def of(cls, instance: Instance, repository: Repository) -> HostRecord | None:
        """Return the record; None if the repository is not the instance's own one, as this host stores nothing there.

        A copy of a repository has the id of the original. So the id alone does not tell them apart.
        """
        if not instance.is_own_repository:
            return None
        folder = instance.host.records / instance.name / _folder_name(repository.id)
        return cls(folder, instance.name, repository.id, instance.repository.url)

    def backups(self) -> BackupRecord:
        """Return the recorded backups; none if nothing was recorded yet. DamagedError if the file cannot be read."""
        empty = BackupRecord(instance=self.instance, repository_id=self.repository_id, url=self.url)
        read = _read(self.folder / _BACKUPS, BackupRecord)
        if read is not None and (read.instance, read.repository_id) != (self.instance, self.repository_id):
            raise _unreadable(self.folder / _BACKUPS, "it belongs to another repository or instance")
        return read or empty

    def archived(self) -> ArchivedPosition | None:
        """Return the newest position that this host archived, None if none is recorded. DamagedError as above."""
        return _read(self.folder / _ARCHIVE, ArchivedPosition)

    def change_backups(self, change: Callable[[BackupRecord], BackupRecord]) -> None:
        """Replace the recorded backups by what `change` makes of them. OSError if the disk refuses.

        A file that cannot be read is set aside, and a new record begins.
        """
        with self._changing():
            try:
                before = self.backups()
            except DamagedError:
                os.replace(self.folder / _BACKUPS, self.folder / f"{_BACKUPS}.unreadable")
                before = BackupRecord(instance=self.instance, repository_id=self.repository_id, url=self.url)
            after = change(before.model_copy(update={"url": self.url}))
            if after != before or not (self.folder / _BACKUPS).exists():
                _write(self.folder / _BACKUPS, after)

    def set_archived(self, position: ArchivedPosition) -> None:
        """Record the newest archived position. OSError if the disk refuses."""
        with self._changing():
            _write(self.folder / _ARCHIVE, position)

    def archived_was_removed(self, incarnation: str, file: str) -> None:
        """Forget the recorded position if it is in this binlog, which a prune of this host removes."""
        with self._changing():
            try:
                known = self.archived()
            except DamagedError:
                return
            if known is not None and (known.incarnation, known.file) == (incarnation, file):
                (self.folder / _ARCHIVE).unlink()
                _sync(self.folder)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Run the block as the only one that changes the record."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _sync(self.folder.parent)
        with (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _folder_name(repository_id: str) -> str:
    """Return the name of the folder for a repository. The id comes from the repository and may be any text."""
    if _PLAIN_ID.fullmatch(repository_id):
        return repository_id
    return f"id-{hashlib.sha256(repository_id.encode(errors='surrogateescape')).hexdigest()[:32]}"


def _unreadable(file: Path, why: str) -> DamagedError:
    return DamagedError(
        f"this host's record of what it stored, {file}, cannot be read: {why}",
        hint="what the repository may lack is not known; the next backup begins a new record",
    )


def _read(file: Path, kind: type[P]) -> P | None:
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(file, str(error.strerror)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(document)"
        raise _unreadable(file, f"{where}: {first['msg']}") from error


def _write(file: Path, record: RecordPart) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with open(descriptor, "wb") as out:
            out.write(record.model_dump_json().encode())
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync(file.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _warning(instance: Instance) -> Iterator[None]:
    """Warn if the record cannot be written: the repository was changed all the same."""
    try:
        yield
    except (OSError, ValidationError) as error:
        why = (
            error.strerror if isinstance(error, OSError) else f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        )
        instance.events.warn(
            f"this host's record of what it stored, below {instance.host.records}, cannot be written ({why}): a backup"
            " that disappears from the repository may not be missed"
        )


def note_stored(instance: Instance, repository: Repository, manifest: Manifest) -> None:
    """Record a backup whose manifest was stored and read back. Warns if the record cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with _warning(instance):
            backup = _recorded(manifest)
            record.change_backups(lambda known: known.with_stored(backup))


def _recorded(manifest: Manifest) -> RecordedBackup:
    volumes = tuple(
        RecordedVolume(role=v.role, dataset=v.dataset, guid=v.guid, from_guid=v.from_guid, send_flags=v.send_flags)
        for v in manifest.volumes
    )
    source = manifest.source
    if not isinstance(source, ServerSourcePart):
        return RecordedBackup(backup_id=manifest.backup_id, volumes=volumes)
    return RecordedBackup(
        backup_id=manifest.backup_id,
        server=server_name(source.server.server_uuid, source.server.server_id),
        flavour=source.server.flavour,
        binlog_file=source.position.binlog_file,
        binlog_offset=source.position.binlog_offset,
        gtids=source.position.gtids,
        volumes=volumes,
    )


def note_removed(instance: Instance, repository: Repository, removed: Sequence[RemovedBackup]) -> None:
    """Record backups that this host is about to remove, or is told to forget. Warns if that cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None and removed:
        with _warning(instance):
            record.change_backups(lambda known: known.with_removed(removed))


def note_settled(instance: Instance, repository: Repository, left: Collection[str]) -> None:
    """Drop the removed backups that left nothing on this host. `left` are the ids that did."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with _warning(instance):
            record.change_backups(lambda known: known.only_removed(left))


def note_archived(instance: Instance, repository: Repository, position: ArchivedPosition) -> None:
    """Record the newest archived position. Warns if that cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with _warning(instance):
            record.set_archived(position)


def note_binlog_removed(instance: Instance, repository: Repository, incarnation: str, file: str) -> None:
    """Record that a prune of this host is about to remove an archived binlog. Warns if that cannot be written."""
    record = HostRecord.of(instance, repository)
    if record is not None:
        with _warning(instance):
            record.archived_was_removed(incarnation, file)


def removed_here(instance: Instance, repository: Repository) -> Mapping[str, frozenset[int]]:
    """Return the GUIDs of the snapshots of each backup that prunes of this host removed, by backup id.

    Empty if the record cannot be read: then nothing proves that this host removed anything.
    """
    record = HostRecord.of(instance, repository)
    try:
        return record.backups().removed_guids() if record is not None else {}
    except DamagedError:
        return {}


def missing(
    instance: Instance, repository: Repository, there: Sequence[Link], unreadable: Collection[str]
) -> tuple[MissingBackup, ...]:
    """Return the backups that this host stored and the repository lacks, in the order in which they were stored.

    `there` are the readable backups, `unreadable` the ids of the others that the repository lists. DamagedError if the
    record cannot be read.
    """
    record = HostRecord.of(instance, repository)
    if record is None:
        return ()
    policy = instance.settings.keep or instance.repository.keep
    local = _local_backups(instance, repository, there)
    return host_record.missing_backups(record.backups(), local, there, unreadable, policy, instance.host.now())


def findings(
    instance: Instance,
    repository: Repository,
    there: Sequence[Link],
    unreadable: Collection[str],
    archive: Archive | None = None,
) -> tuple[StoredFinding, ...]:
    """Return what the repository lacks of what this host stored. The arguments are those of `missing`.

    `archive` None: the binlogs are not looked at.
    """
    record = HostRecord.of(instance, repository)
    if record is None:
        return ()
    found: list[StoredFinding] = []
    try:
        found += host_record.judge_backups(missing(instance, repository, there, unreadable), instance.name)
        if archive is not None:
            short = host_record.judge_archive(record.archived(), positions(archive))
            found += [short] if short is not None else []
    except DamagedError as error:
        found.append(StoredFinding(StoredKind.RECORD_UNREADABLE, error.message, error.hint))
    return (*found, *_other_repositories(instance, repository))


def positions(archive: Archive) -> list[ArchivedPosition]:
    """Return the end of each archived binlog."""
    return [
        ArchivedPosition(incarnation=file.incarnation, file=file.name, end=file.end, last_commit=file.last_commit)
        for file in archive.files
    ]


def _other_repositories(instance: Instance, repository: Repository) -> Iterator[StoredFinding]:
    """Yield a finding for each other repository in which this host stored backups at the same address."""
    folder = instance.host.records / instance.name
    for file in sorted(folder.glob(f"*/{_BACKUPS}")):
        with contextlib.suppress(DamagedError):
            other = _read(file, BackupRecord)
            if (
                other is not None
                and other.stored
                and (other.url, other.instance) == (instance.repository.url, instance.name)
                and other.repository_id != repository.id
            ):
                yield StoredFinding(
                    StoredKind.OTHER_REPOSITORY,
                    f"{other.url} was another repository (id {other.repository_id}) when this host stored"
                    f" {len(other.stored)} backups there, the newest {other.stored[-1].backup_id}; now it is"
                    f" {repository.id}",
                    "look for the objects in older versions or in a copy of the bucket. If the repository was replaced"
                    f" on purpose, remove {file}",
                    tuple(backup.backup_id for backup in other.stored),
                )


def _local_backups(instance: Instance, repository: Repository, there: Sequence[Link]) -> list[LocalBackup]:
    """Return the backups whose snapshots on this host say that they are stored in this repository, oldest first.

    An empty list if this host has no ZFS, or lacks a dataset of the instance.
    """
    volumes = instance.settings.volumes
    if volumes is None:
        volumes = {volume.role: volume.dataset for volume in there[-1].volumes} if there else {}
    guids: dict[str, dict[str, int]] = {}
    try:
        for role, dataset in volumes.items():
            for marked in snapshots.owned(
                dataset, [BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY, REPOSITORY_PROPERTY]
            ):
                marks, backup_id = marked.properties, marked.properties[BACKUP_PROPERTY]
                is_own = is_backup_id(backup_id) and marked.snapshot.name == snapshot_name(backup_id)
                is_stored = (marks[INSTANCE_PROPERTY], marks[STATE_PROPERTY], marks[REPOSITORY_PROPERTY]) == (
                    instance.name,
                    STORED,
                    repository.id,
                )
                if is_own and is_stored:
                    guids.setdefault(backup_id, {})[role] = marked.snapshot.guid
    except (ZsnapdbError, OSError):
        return []
    return [LocalBackup(backup_id, by_role) for backup_id, by_role in guids.items()]
