"""Marks of backups that were begun, as the one that prunes sees them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.errors import NotThere
from zsnapdb.model import is_backup_id
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class Mark:
    """A backup that was begun: on which host, what it builds on (None: not known), and when the mark was written by the store's clock."""

    backup_id: str
    host: str
    from_guids: frozenset[int] | None
    modified: datetime | None

    def may_build_on(self, guids: Collection[int]) -> bool:
        """Whether it may be an increment of the backup with these snapshots."""
        return self.from_guids is None or bool(self.from_guids & set(guids))


def unfinished(repository: Repository, instance: str) -> list[Mark]:
    """Return the marks of an instance. One that cannot be read may build on anything."""
    found = []
    prefix = repository.prefix + layout.unfinished(instance)
    for item in repository.store.list(prefix):
        backup_id = item.key[len(prefix) :].removesuffix(".json")
        if not is_backup_id(backup_id):
            continue
        try:
            document = json.loads(repository.store.get(item.key))
            host, guids = str(document["host"]), [part.get("from_guid", -1) for part in document["snapshots"].values()]
        except NotThere:
            continue
        except (ValueError, KeyError, TypeError, AttributeError):
            host, guids = "an unknown host", [-1]
        known = None if -1 in guids else frozenset(guid for guid in guids if guid is not None)
        found.append(Mark(backup_id, host, known, item.modified))
    return found
