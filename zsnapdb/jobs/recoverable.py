"""What of an instance's server can be recovered from its backups and its archived binlogs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zsnapdb.jobs import host_record
from zsnapdb.jobs.backup_point import points_of
from zsnapdb.jobs.instance import Instance
from zsnapdb.planning.binlog.window import Window, window
from zsnapdb.planning.damage import DamageRegister
from zsnapdb.planning.repository.verification import consequences
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.known_damage import known_damage
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository


def recoverable(instance: Instance, repository: Repository) -> Window:
    """Return what can be recovered now. Reads the repository alone; manifests that were read before are cached."""
    known = instance.summaries(repository)
    archive = BinlogArchive(repository, instance.name).load()
    future = host_record.check(instance, repository, known.backups, tuple(known.unreadable)).future
    return window_of(known.backups, archive, known_damage(repository, instance.name), future)


def window_of(
    backups: Sequence[Manifest | Summary], archive: Archive, damage: DamageRegister, future: Collection[str]
) -> Window:
    """Return what can be recovered from backups and an archive.

    Backups of other sources do not count, nor those whose chain is incomplete or known to be damaged, nor the backups
    from the future.
    """
    return window(points_of(restorable_of(backups, damage, future)), archive.files, archive.state)


def restorable_of(
    backups: Sequence[Manifest | Summary], damage: DamageRegister, future: Collection[str]
) -> list[Manifest | Summary]:
    """Return the backups whose chain is complete and not known to be damaged, without those from the future."""
    restorable = set(consequences(backups, damage.stored()).restorable) - set(future)
    return [backup for backup in backups if backup.backup_id in restorable]
