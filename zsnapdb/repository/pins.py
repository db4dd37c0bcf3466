"""Pins: a backup with a pin is never pruned. The pin has the reason.

A host that signs also signs its pins. Each pin names its repository, instance and backup. A foreign pin, or one of
another backup, also protects the backup of its key, because a pin removes nothing. Its reason is not shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pydantic import BaseModel

from zsnapdb.base.errors import DamagedError, ExistsError, NotFound
from zsnapdb.base.patterns import BackupId, InstanceName, RepositoryId, Words
from zsnapdb.planning.repository.document_digests import PINS
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class Pin:
    """The reason to keep a backup, and the time of the pin (UTC, ISO 8601)."""

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
    """Return the pins of an instance by backup id. An unreadable pin protects its backup too."""
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


def copy(here: Repository, there: Repository, instance: str, backup_id: str) -> bool:
    """Copy a backup's pin from `here` to `there`, unless the backup has a pin there.

    Return whether a pin was copied.
    """
    key = layout.pin(instance, backup_id)
    try:
        there.put_alone(key, here.get(key))
    except (NotFound, ExistsError):
        return False
    return True


def unpin(repository: Repository, instance: str, backup_id: str) -> Pin:
    """Remove a backup's pin and return it. NotFound if the backup has no pin."""
    removed = pins(repository, instance).get(backup_id)
    if removed is None:
        raise NotFound(
            f"backup {backup_id} of instance {instance} has no pin",
            hint="run `zsnapdb prune --plan` to see which backups have a pin",
        )
    repository.delete(layout.pin(instance, backup_id))
    return removed
