"""The files of this host's records. They are parsed as models, replaced atomically, and synced after each write."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import first_problem
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning import creation_order
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.repository import host_backup_record
from zsnapdb.planning.repository.host_backup_record import (
    ArchivedBinlogs,
    ArchivedPosition,
    BackupRecord,
    EvidenceEnd,
    LocalBackup,
    MissingBackup,
    RecordPart,
    StoredFinding,
)
from zsnapdb.planning.repository.known_backups import Provenance

if TYPE_CHECKING:
    from zsnapdb.repository.binlog_archive_contents import Archive
    from zsnapdb.repository.repository import Repository

R = TypeVar("R", bound=RecordPart)
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
BACKUPS, _ARCHIVE, _BINLOGS, _EVIDENCE = "backups.json", "archive.json", "binlogs.json", "evidence.json"
_LOCK_SECONDS = 30.0
"""The time in seconds to wait for another process that is changing the record."""


@dataclass(frozen=True)
class HostRecord:
    """The record of one instance in one repository. `url` is the present address of that repository."""

    folder: Path
    instance: str
    repository_id: str
    url: str

    @classmethod
    def of(cls, instance: Instance, repository: Repository) -> HostRecord | None:
        """Return the record of the instance in its repository; None if the repository is not the instance's own.

        Records exist only for repositories in which this host stores backups. A copy of a repository has the same id as
        the original, but its record has another path.
        """
        if not instance.is_own_repository:
            return None
        folder = instance.host.records / instance.name / folder_name(repository.id)
        return cls(folder, instance.name, repository.id, instance.repository.url)

    @classmethod
    def of_copy(cls, instance: Instance, repository: Repository) -> HostRecord:
        """Return the record for a repository other than the instance's own.

        This host copied backups to that repository, or adopted backups in it.
        """
        address = hashlib.sha256(instance.repository.url.encode()).hexdigest()[:16]
        folder = instance.host.records / instance.name / f"copy-{address}" / folder_name(repository.id)
        return cls(folder, instance.name, repository.id, instance.repository.url)

    def backups(self) -> BackupRecord:
        """Return the recorded backups; an empty record if none exists yet.

        Raises:
            DamagedError: the file cannot be read.
        """
        empty = BackupRecord(instance=self.instance, repository_id=self.repository_id, url=self.url)
        known = read(self.folder / BACKUPS, BackupRecord)
        if known is not None and (known.instance, known.repository_id) != (self.instance, self.repository_id):
            raise unreadable(self.folder / BACKUPS, "it belongs to another repository or instance")
        return known or empty

    def archived(self) -> ArchivedPosition | None:
        """Return the newest binlog position that this host archived; None if no position is recorded.

        Raises the errors of `backups`.
        """
        return read(self.folder / _ARCHIVE, ArchivedPosition)

    def evidence_end(self) -> EvidenceEnd | None:
        """Return the newest record of the evidence log that this host remembers; None if it remembers no record.

        Raises the errors of `backups`.
        """
        return read(self.folder / _EVIDENCE, EvidenceEnd)

    def set_evidence_end(self, end: EvidenceEnd) -> None:
        """Remember the newest record of the evidence log, and the newest record that this host wrote.

        If another run has remembered a newer record, that record stays.

        Raises:
            OSError: the file cannot be written.
        """
        with self._changing():
            known = self.evidence_end()
            newer, older = (known, end) if known is not None and known.number > end.number else (end, known)
            after = newer if newer is known and known.own is None else newer.after(older)
            if after != known:
                files.replace(self.folder / _EVIDENCE, after.model_dump_json().encode(), 0o644)

    def change_backups(self, change: Callable[[BackupRecord], BackupRecord]) -> BackupRecord:
        """Replace the recorded backups with the result of `change`, and return the result.

        If the file is unreadable, it is renamed, and a new record begins.

        Raises:
            OSError: the file cannot be written.
        """
        with self._changing():
            try:
                before = self.backups()
            except DamagedError:
                os.replace(self.folder / BACKUPS, self.folder / f"{BACKUPS}.unreadable")
                before = BackupRecord(instance=self.instance, repository_id=self.repository_id, url=self.url)
            after = change(before.model_copy(update={"url": self.url}))
            if after != before or not (self.folder / BACKUPS).exists():
                files.replace(self.folder / BACKUPS, after.model_dump_json().encode(), 0o644)
            return after

    def binlogs(self) -> ArchivedBinlogs | None:
        """Return the recorded binlogs; None if none are recorded yet. Raises the errors of `backups`."""
        return read(self.folder / _BINLOGS, ArchivedBinlogs)

    def change_binlogs(self, change: Callable[[ArchivedBinlogs], ArchivedBinlogs]) -> None:
        """Replace the recorded binlogs with the result of `change`.

        If the file is unreadable, it is renamed, and a new record begins.

        Raises:
            OSError: the file cannot be written.
        """
        with self._changing():
            try:
                before = self.binlogs()
            except DamagedError:
                os.replace(self.folder / _BINLOGS, self.folder / f"{_BINLOGS}.unreadable")
                before = None
            after = change(before or ArchivedBinlogs())
            if after != before:
                files.replace(self.folder / _BINLOGS, after.model_dump_json().encode(), 0o644)

    def set_archived(self, position: ArchivedPosition) -> None:
        """Record the newest archived position.

        Raises:
            OSError: the file cannot be written.
        """
        with self._changing():
            files.replace(self.folder / _ARCHIVE, position.model_dump_json().encode(), 0o644)

    def archived_was_removed(self, incarnation: str, file: str) -> None:
        """Delete the newest archived position from the record if the position is in the given binlog.

        Call this before a prune on this host removes the binlog.
        """
        with self._changing():
            try:
                known = self.archived()
            except DamagedError:
                return
            if known is not None and (known.incarnation, known.file) == (incarnation, file):
                (self.folder / _ARCHIVE).unlink()
                files.sync_folder(self.folder)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Run the block as the only process that changes the record.

        Raises:
            TimeoutError: another process does not release the lock of the record in time.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.sync_folder(self.folder.parent)
        with files.locked_file(self.folder / ".lock", _LOCK_SECONDS):
            yield


def folder_name(repository_id: str) -> str:
    """Return the name of the folder for a repository.

    The id comes from the repository and may be any text. If it is not a plain id, the name contains its digest instead.
    """
    if _PLAIN_ID.fullmatch(repository_id):
        return repository_id
    return f"id-{hashlib.sha256(repository_id.encode(errors='surrogateescape')).hexdigest()[:32]}"


def unreadable(file: Path, why: str) -> DamagedError:
    """Return the error for a record that cannot be read."""
    return DamagedError(
        f"this host's record of its stored backups, {file}, cannot be read: {why}",
        hint="run `zsnapdb list`, and compare it with the expected backups; the next backup begins a new record",
    )


def read(file: Path, kind: type[R]) -> R | None:
    """Return the content of the record; None if the file does not exist.

    Raises:
        DamagedError: the file cannot be read.
    """
    try:
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(file, str(error.strerror)) from error
    except ValidationError as error:
        raise unreadable(file, first_problem(error)) from error


_LEAST_BYTES = 1 << 20
"""The minimum free space in bytes. This is about the size of a backup's journal."""


def objections(folder: Path) -> tuple[str, ...]:
    """Return the reasons why no records can be written to the folder: a full or read-only file system.

    The result is empty if there are none. Backups are still possible without a journal. But without a journal, an
    interrupted backup starts from the beginning, and zsnapdb does not know which notifications it already sent.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        # Either this host has no records yet, or this account may not see them.
        return ()
    if disk.f_flag & os.ST_RDONLY:
        return (f"this host cannot keep its records: the file system of {folder} is read-only",)
    free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
    if free >= _LEAST_BYTES:
        return ()
    return (f"this host cannot keep its records: {folder} has {free} bytes of room",)


P = TypeVar("P", bound=PlacedLink)


@dataclass(frozen=True)
class StoredCheck:
    """The comparison of a repository with this host's record.

    `missing` contains the backups that the repository lacks. `archive` is the newest position that this host archived,
    if the archive ends before that position. `order` contains the ids of all backups, including missing backups, oldest
    first.
    """

    findings: tuple[StoredFinding, ...] = ()
    missing: tuple[MissingBackup, ...] = ()
    archive: ArchivedPosition | None = None
    order: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    """The ids of the backups that this host itself made, according to its record and its snapshots."""
    future: Mapping[str, datetime] = field(default_factory=dict)
    """The times of the backups with a future time, by backup id. Such a backup is used only if a user names it."""
    provenance: Provenance = field(default_factory=Provenance)
    """The backups that this host knows, and the foreign backups."""
    archived: ArchivedPosition | None = None
    """The newest position that this host archived; None if the binlogs were not compared."""
    record: BackupRecord | None = None
    local: tuple[LocalBackup, ...] = ()
    known_archive: Archive | None = None
    """The part of the archive that this host knows; None if the binlogs were not compared."""
    taken_back: Mapping[str, str] = field(default_factory=dict)
    """The reason why production lost the state of a backup, by backup id. The reason is a restore or `zfs rollback`."""
    rolled_back: frozenset[str] = frozenset()
    """The backups of this host in `taken_back` whose state was lost by `zfs rollback`.

    If this host has no record, these are all backups whose state was lost by `zfs rollback`.
    """

    @property
    def unbelieved(self) -> Mapping[str, str]:
        """For each backup that is foreign or has a future time, the reason why zsnapdb does not choose it.

        Backups whose removal has begun are included. They may lack chunks, and anybody who can write to the bucket can
        add their manifests again.
        """
        begun = dict.fromkeys(self.provenance.begun, "this host began to remove it")
        return {**begun, **dict.fromkeys(self.future, "it is from the future"), **self.provenance.unchosen}

    @property
    def unchosen(self) -> Mapping[str, str]:
        """For each backup that is used only if a user names it, the reason for this."""
        return {**self.taken_back, **self.unbelieved}

    @property
    def doubtful_future(self) -> Collection[str]:
        """The backups with a future time, if this host knows no backup. Any of them may be the newest."""
        return self.future.keys() - self.provenance.unchosen.keys()

    def order_with(self, there: Sequence[PlacedLink]) -> tuple[str, ...]:
        """Return the ids of the given backups and sets, oldest first.

        The given backups and sets may differ from the compared ones. For example, they may include local sets.
        """
        if self.record is None:
            return self.order
        return host_backup_record.order_of(self.record, self.local, there, self.provenance.unchosen)

    def ordered(self, there: Sequence[P]) -> tuple[P, ...]:
        """Return the given stored backups, oldest first.

        Foreign backups do not change the order of the other backups.
        """
        foreign = self.provenance.unchosen
        believed = {backup.backup_id for backup in there if backup.backup_id not in foreign}
        abandoned = self.record.abandoned if self.record is not None else creation_order.NOTHING
        return tuple(creation_order.in_order(there, believed, abandoned))

    def numbers(self, there: Sequence[PlacedLink]) -> tuple[int | None, ...]:
        """Return the sequence numbers of the given stored backups.

        Foreign backups are left out, because their numbers are not trusted.
        """
        return tuple(backup.sequence for backup in there if backup.backup_id not in self.provenance.unchosen)

    def warn(self, instance: Instance) -> None:
        """Report the findings that are warnings as events of the instance."""
        for finding in self.findings:
            if finding.is_warning:
                instance.events.warn(f"{finding.text} (hint: {finding.hint})")
