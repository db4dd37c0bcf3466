"""Pins a backup, so that no prune removes it, and removes the pin again."""

from __future__ import annotations

from zsnapdb.errors import NotThere, UsageError
from zsnapdb.jobs.instance import Instance
from zsnapdb.repository import pins
from zsnapdb.repository.pins import Pin


def pin(instance: Instance, backup_id: str, reason: str) -> Pin:
    """Pin a backup (an id or `latest`).

    Afterwards no prune removes the backup or its bases. NotThere if there is no such backup.
    """
    if not reason.strip():
        raise UsageError("a pin needs a reason", hint='give a reason, such as --reason "before the migration"')
    repository = instance.open_repository()
    if backup_id == "latest":
        ids = repository.backup_ids(instance.name)
        if not ids:
            raise NotThere(f"the repository has no backup of instance {instance.name}", hint="see `zsnapdb list`")
        backup_id = ids[-1]
    return pins.pin(repository, instance.name, backup_id, reason.strip())


def unpin(instance: Instance, backup_id: str) -> Pin:
    """Remove the pin of a backup. NotThere if the backup has no pin."""
    return pins.unpin(instance.open_repository(), instance.name, backup_id)
