"""Tells this host that backups were removed from the repository on purpose, by another host or by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import NotThere
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_record
from zsnapdb.planning.repository.host_record import RemovedBackup


@dataclass(frozen=True)
class ForgetResult:
    """The ids of the backups that this host no longer expects in the repository."""

    instance: str
    backups: tuple[str, ...]


def plan_forget(instance: Instance, names: Sequence[str]) -> ForgetResult:
    """Return what `forget` would do now; changes nothing."""
    return ForgetResult(instance.name, tuple(backup.backup_id for backup in _removed(instance, names)))


def forget(instance: Instance, names: Sequence[str]) -> ForgetResult:
    """Stop expecting these backups in the repository; without names all that it lacks.

    Afterwards no command misses them, and a prune of this host may destroy their local snapshots. NotThere if this host
    did not store such a backup, or if the repository has it.
    """
    removed = _removed(instance, names)
    host_record.note_removed(instance, instance.open_repository(), removed)
    return ForgetResult(instance.name, tuple(backup.backup_id for backup in removed))


def _removed(instance: Instance, names: Sequence[str]) -> list[RemovedBackup]:
    repository = instance.open_repository()
    _, checked = host_record.stored(instance, repository)
    missing = {backup.backup_id: backup for backup in checked.missing}
    for name in names:
        if name not in missing:
            raise NotThere(
                f"backup {name} of instance {instance.name} is not one that this host stored and the repository lacks",
                hint="run `zsnapdb list` to see what is missing",
            )
    chosen = names or tuple(missing)
    return [RemovedBackup(backup_id=name, guids=missing[name].guids, acknowledged=True) for name in chosen]
