"""What the repository tells of backups that were begun, for other hosts and for those who prune."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from zsnapdb.errors import NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class SnapshotMark:
    """A snapshot that is being stored, and the GUID of the one it is an increment of (None: a full stream)."""

    name: str
    guid: int
    from_guid: int | None


@dataclass(frozen=True)
class Unfinished:
    """A backup that was begun on a host and has no manifest yet; `started` is UTC, ISO 8601.

    Snapshots by role; none where they cannot be read.

    `modified` is when this was written, by the store's clock; None if that is not known.
    """

    backup_id: str
    instance: str
    host: str
    started: str
    snapshots: Mapping[str, SnapshotMark]
    modified: datetime | None = None

    def write(self, repository: Repository) -> None:
        """Store it; over an earlier one of the same backup."""
        parts = {role: asdict(mark) for role, mark in self.snapshots.items()}
        document = {
            "format": 1,
            "backup_id": self.backup_id,
            "instance": self.instance,
            "host": self.host,
            "started": self.started,
            "snapshots": parts,
        }
        repository.overwrite(layout.unfinished_backup(self.instance, self.backup_id), json.dumps(document).encode())

    def may_build_on(self, guids: Collection[int]) -> bool:
        """Whether it may be an increment of the backup with these snapshots. What cannot be read may be one of any."""
        return not self.snapshots or any(mark.from_guid in guids for mark in self.snapshots.values())


def _parse(body: bytes, instance: str, backup_id: str, modified: datetime | None) -> Unfinished:
    try:
        document = json.loads(body)
        parts = {
            str(role): SnapshotMark(part["name"], part["guid"], part["from_guid"])
            for role, part in document["snapshots"].items()
        }
        return Unfinished(
            backup_id, instance, str(document["host"]), str(document.get("started", "an unknown time")), parts, modified
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        # What it says is for people; that it is there is what counts.
        return Unfinished(backup_id, instance, "an unknown host", "an unknown time", {}, modified)


def unfinished(repository: Repository, instance: str, stored: Collection[str] = ()) -> list[Unfinished]:
    """Return what was begun and is not among the `stored` backups, oldest first."""
    marks = []
    for listed in sorted(repository.list(layout.unfinished(instance)), key=lambda listed: listed.key):
        if listed.key.backup_id in stored:
            continue
        try:
            body = repository.get(listed.key)
        except NotThere:
            continue
        marks.append(_parse(body, instance, listed.key.backup_id, listed.modified))
    return marks


def remove(repository: Repository, instance: str, backup_id: str) -> None:
    """Remove what tells of a backup: it is stored, or was given up.

    RepositoryError if this host may not; it then has no meaning beside a manifest.
    """
    repository.delete(layout.unfinished_backup(instance, backup_id))
