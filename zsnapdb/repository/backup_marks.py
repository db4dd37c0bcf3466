"""Marks of backups in a repository: a pin, which prune respects, and the mark of an unfinished backup."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from pydantic import BaseModel

from zsnapdb.base.errors import DamagedError, ExistsError, NotFound
from zsnapdb.base.patterns import BackupId, FullSnapshotName, Guid, InstanceName, RepositoryId, RoleName, Words
from zsnapdb.planning.repository.document_digests import MARKS, PINS
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import UntrustedRecord
from zsnapdb.repository.objects import Part
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class Pin:
    """The reason for keeping a backup, and the time of the pin (UTC, ISO 8601)."""

    backup_id: str
    reason: str
    since: str


class _PinPart(BaseModel):
    format: int = 1
    repository_id: RepositoryId
    instance: InstanceName
    backup_id: BackupId
    reason: Words
    since: Words


def pins(repository: Repository, instance: str) -> dict[str, Pin]:
    """Return the pins of an instance, keyed by backup id. An unreadable pin also protects its backup."""
    known = {}
    for listed in repository.list(layout.pins(instance)):
        backup_id = listed.key.backup_id
        try:
            known[backup_id] = _pin(repository, instance, backup_id, repository.verified(listed.key))
        except NotFound:
            continue
        except DamagedError:
            known[backup_id] = Pin(backup_id, "(the pin is not signed by a key that this host believes)", "")
        except ValueError:
            known[backup_id] = Pin(backup_id, "(the pin cannot be read)", "")
    return known


def _pin(repository: Repository, instance: str, backup_id: str, line: bytes) -> Pin:
    document = _PinPart.model_validate_json(line)
    if (document.repository_id, document.instance, document.backup_id) != (repository.id, instance, backup_id):
        return Pin(backup_id, "(the pin was made for another backup, and copied by hand)", "")
    return Pin(backup_id, document.reason, document.since)


def pin(repository: Repository, instance: str, backup_id: str, reason: str) -> Pin:
    """Pin a backup, or replace the reason of its pin. Return the pin.

    Raises: NotFound if the backup does not exist.
    """
    repository.manifest(instance, backup_id)
    new_pin = Pin(backup_id, reason, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    document = {"format": 1, "repository_id": repository.id, "instance": instance, **asdict(new_pin)}
    repository.overwrite(
        layout.pin(instance, backup_id),
        repository.keyring.signed_if_able(json.dumps(document).encode(), PINS),
    )
    return new_pin


def copy_pin(here: Repository, there: Repository, instance: str, backup_id: str) -> bool:
    """Copy a backup's pin from repository `here` to repository `there`, unless `there` already contains the pin.

    Return whether a pin was copied.
    """
    key = layout.pin(instance, backup_id)
    try:
        there.put_alone(key, here.get(key))
    except (NotFound, ExistsError):
        return False
    return True


def unpin(repository: Repository, instance: str, backup_id: str) -> Pin:
    """Remove a backup's pin and return it. Raises NotFound if the backup has no pin."""
    removed = pins(repository, instance).get(backup_id)
    if removed is None:
        raise NotFound(
            f"backup {backup_id} of instance {instance} has no pin",
            hint="run `zsnapdb prune --plan` to see which backups have a pin",
        )
    repository.delete(layout.pin(instance, backup_id))
    return removed


class SnapshotMark(Part):
    """A snapshot that is being stored. `from_guid` is the GUID of the increment's base (None means a full stream)."""

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
    """A backup that was started on a host and has no manifest yet. `started` is the start time (UTC, ISO 8601).

    `snapshots` maps each role to its snapshot, and is empty if the mark is unreadable. `modified` is the time at which
    the mark was written, by the store's clock; None if the store does not report it. `is_foreign` is True if an unknown
    host wrote the mark.
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
        """Whether the backup may be an increment of a backup with the given snapshots.

        For an unreadable mark, the result is always True.
        """
        return not self.snapshots or any(mark.from_guid in guids for mark in self.snapshots.values())


def _parse(repository: Repository, line: bytes, instance: str, backup_id: str, modified: datetime | None) -> Unfinished:
    document = _UnfinishedPart.decode(line, backup_id)
    if (document.repository_id, document.instance, document.backup_id) != (repository.id, instance, backup_id):
        return _unreadable(instance, backup_id, modified)
    return Unfinished(backup_id, instance, document.host, document.started, document.snapshots, modified)


def _unreadable(instance: str, backup_id: str, modified: datetime | None) -> Unfinished:
    """Return a mark for an object that is unreadable, belongs to another backup, or has no trusted signature.

    Even a mark of this kind shows that a backup was started.
    """
    return Unfinished(backup_id, instance, "an unknown host", "an unknown time", {}, modified)


def unfinished(repository: Repository, instance: str, stored: Collection[str] = ()) -> list[Unfinished]:
    """Return the started backups that are not in `stored`, oldest first."""
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


def remove_mark(repository: Repository, instance: str, backup_id: str) -> None:
    """Remove the mark of a backup that is stored or abandoned. A mark is meaningless once its backup has a manifest.

    Raises: RepositoryError if this host may not remove the mark.
    """
    repository.delete(layout.unfinished_backup(instance, backup_id))
