"""Marks of unfinished backups in the repository. Other hosts and prune read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.base.patterns import BackupId, FullSnapshotName, Guid, InstanceName, RepositoryId, RoleName, Words
from zsnapdb.planning.repository.document_digests import MARKS
from zsnapdb.repository import layout
from zsnapdb.repository.document_base import Part
from zsnapdb.repository.keyring import UntrustedRecord
from zsnapdb.repository.repository import Repository


class SnapshotMark(Part):
    """A snapshot in progress of storage. `from_guid` is the GUID of the increment's base (None: a full stream)."""

    name: FullSnapshotName
    guid: Guid
    from_guid: Guid | None


class _UnfinishedPart(Part):
    format: int = 1
    repository_id: RepositoryId
    backup_id: BackupId
    instance: InstanceName
    host: Words
    started: Words = "an unknown time"
    snapshots: dict[RoleName, SnapshotMark]


@dataclass(frozen=True)
class Unfinished:
    """A backup that was started on a host and has no manifest yet. `started` is UTC, ISO 8601.

    `snapshots` are by role, and empty if the mark is unreadable. `modified` is the mark's time of writing by the
    store's clock; None if the store does not report it. `is_foreign`: an unknown host wrote it.
    """

    backup_id: str
    instance: str
    host: str
    started: str
    snapshots: Mapping[str, SnapshotMark]
    modified: datetime | None = None
    is_foreign: bool = False

    def write(self, repository: Repository) -> None:
        """Store the mark. It replaces an earlier mark of the same backup."""
        document = _UnfinishedPart(
            repository_id=repository.id,
            backup_id=self.backup_id,
            instance=self.instance,
            host=self.host,
            started=self.started,
            snapshots=dict(self.snapshots),
        )
        body = repository.keyring.signed(document.encode(), MARKS)
        repository.overwrite(layout.unfinished_backup(self.instance, self.backup_id), body)

    def may_build_on(self, guids: Collection[int]) -> bool:
        """Whether the backup may be an increment of one with these snapshots. For an unreadable mark: always."""
        return not self.snapshots or any(mark.from_guid in guids for mark in self.snapshots.values())


def _parse(repository: Repository, line: bytes, instance: str, backup_id: str, modified: datetime | None) -> Unfinished:
    document = _UnfinishedPart.decode(line, backup_id)
    if (document.repository_id, document.instance, document.backup_id) != (repository.id, instance, backup_id):
        return _unreadable(instance, backup_id, modified)
    return Unfinished(backup_id, instance, document.host, document.started, document.snapshots, modified)


def _unreadable(instance: str, backup_id: str, modified: datetime | None) -> Unfinished:
    """Return a mark that is unreadable, of another backup, or without a signature of a trusted key.

    Its existence counts.
    """
    return Unfinished(backup_id, instance, "an unknown host", "an unknown time", {}, modified)


def unfinished(repository: Repository, instance: str, stored: Collection[str] = ()) -> list[Unfinished]:
    """Return the started backups that are not among the `stored` ones, oldest first."""
    marks = []
    for listed in sorted(repository.list(layout.unfinished(instance)), key=lambda listed: listed.key):
        if listed.key.backup_id in stored:
            continue
        backup_id = listed.key.backup_id
        try:
            line = repository.believed(listed.key)
            marks.append(_parse(repository, line, instance, backup_id, listed.modified))
        except NotFound:
            continue
        except DamagedError as error:
            unread = _unreadable(instance, backup_id, listed.modified)
            marks.append(replace(unread, is_foreign=isinstance(error, UntrustedRecord)))
    return marks


def remove(repository: Repository, instance: str, backup_id: str) -> None:
    """Remove a backup's mark: the backup is stored or abandoned. A mark next to a manifest has no meaning.

    Raises: RepositoryError if this host may not remove it.
    """
    repository.delete(layout.unfinished_backup(instance, backup_id))
