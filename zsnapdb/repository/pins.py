"""Pins: a backup that has one is never pruned, and everybody can read why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from zsnapdb.errors import ExistsError, NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class Pin:
    """Why a backup stays, and since when (UTC, ISO 8601)."""

    backup_id: str
    reason: str
    since: str
    format: int = 1


def pins(repository: Repository, instance: str) -> dict[str, Pin]:
    """Return the pins of an instance by backup id. One that cannot be read pins as well."""
    known = {}
    for listed in repository.list(layout.pins(instance)):
        backup_id = listed.key.backup_id
        try:
            document = json.loads(repository.get(listed.key))
            known[backup_id] = Pin(backup_id, str(document["reason"]), str(document["since"]))
        except NotThere:
            continue
        except (ValueError, KeyError, TypeError):
            known[backup_id] = Pin(backup_id, "(its pin cannot be read)", "")
    return known


def pin(repository: Repository, instance: str, backup_id: str, reason: str) -> Pin:
    """Pin a backup, or give its pin another reason; NotThere if there is no such backup."""
    repository.manifest(instance, backup_id)
    made = Pin(backup_id, reason, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    repository.overwrite(layout.pin(instance, backup_id), json.dumps(asdict(made)).encode())
    return made


def copy(here: Repository, there: Repository, instance: str, backup_id: str) -> bool:
    """Give a backup in another repository the pin it has here, unless it has one there.

    Return whether it was given one.
    """
    key = layout.pin(instance, backup_id)
    try:
        there.put(key, here.get(key))
    except (NotThere, ExistsError):
        return False
    return True


def unpin(repository: Repository, instance: str, backup_id: str) -> Pin:
    """Take a backup's pin away and return it; NotThere if it has none."""
    removed = pins(repository, instance).get(backup_id)
    if removed is None:
        raise NotThere(
            f"backup {backup_id} of instance {instance} has no pin", hint="`zsnapdb prune --plan` shows which have one"
        )
    repository.delete(layout.pin(instance, backup_id))
    return removed
