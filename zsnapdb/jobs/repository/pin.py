"""Pins of backups, which no prune removes: creation and removal."""

from __future__ import annotations

from zsnapdb.base.errors import NotFound, UsageError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.repository import layout, pins
from zsnapdb.repository.pins import Pin


def pin(instance: Instance, backup_id: str, reason: str) -> Pin:
    """Pin a backup (an id or `latest`).

    Afterwards no prune removes the backup or its bases. This host remembers the pin, in case the repository loses it.

    Raises: NotFound if the backup does not exist.
    """
    if not reason.strip():
        raise UsageError("a pin needs a reason", hint='give a reason, such as --reason "before the migration"')
    repository = instance.open_repository()
    if backup_id == "latest":
        known = host_record.choosable(instance, repository)
        if not known:
            raise NotFound(f"the repository has no backup of instance {instance.name}", hint=OTHER_ADDRESS_HINT)
        backup_id = known[-1].backup_id
    made = pins.pin(repository, instance.name, backup_id, reason.strip())
    host_record.note_pinned(instance, repository, backup_id)
    return made


def unpin(instance: Instance, backup_id: str) -> Pin:
    """Remove the pin of a backup, here and in the repository.

    Raises: NotFound if it has no pin in either place.
    """
    repository = instance.open_repository()
    if backup_id in host_record.pinned_here(instance, repository):
        removed = pins.pins(repository, instance.name).get(backup_id) or Pin(backup_id, "(the pin was hidden)", "")
        repository.delete(layout.pin(instance.name, backup_id))
        host_record.note_unpinned(instance, repository, backup_id)
        return removed
    return pins.unpin(repository, instance.name, backup_id)
