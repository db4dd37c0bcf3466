"""What the repository tells of backups that were begun, for other hosts to see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from zsnapdb.errors import NotThere
from zsnapdb.model import is_backup_id
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
    """A backup that was begun on a host and has no manifest yet; `started` is UTC, ISO 8601. Snapshots by role."""

    backup_id: str
    instance: str
    host: str
    started: str
    snapshots: Mapping[str, SnapshotMark]
    format: int = 1

    def write(self, repository: Repository) -> None:
        """Store it; over an earlier one of the same backup."""
        key = repository.prefix + layout.unfinished_backup(self.instance, self.backup_id)
        repository.store.put(key, json.dumps(asdict(self)).encode())


def _parse(body: bytes, instance: str, backup_id: str) -> Unfinished:
    try:
        found = json.loads(body)
        parts = {str(role): SnapshotMark(part["name"], part["guid"], part["from_guid"]) for role, part in found["snapshots"].items()}
        return Unfinished(backup_id, instance, str(found["host"]), str(found["started"]), parts)
    except (ValueError, KeyError, TypeError, AttributeError):
        # What it says is for people; that it is there is what counts.
        return Unfinished(backup_id, instance, "an unknown host", "an unknown time", {})


def unfinished(repository: Repository, instance: str, stored: Sequence[str]) -> list[Unfinished]:
    """Return what was begun and is not among the `stored` backups, oldest first."""
    prefix = repository.prefix + layout.unfinished(instance)
    ids = [item.key[len(prefix) :].removesuffix(".json") for item in repository.store.list(prefix)]
    found = []
    for backup_id in sorted(text for text in ids if is_backup_id(text) and text not in set(stored)):
        try:
            body = repository.store.get(prefix + backup_id + ".json")
        except NotThere:
            continue
        found.append(_parse(body, instance, backup_id))
    return found


def remove(repository: Repository, instance: str, backup_id: str) -> None:
    """Remove what tells of a backup: it is stored, or was given up. RepositoryError if this host may not; it then has no meaning beside a manifest."""
    repository.store.delete(repository.prefix + layout.unfinished_backup(instance, backup_id))
