"""Finds backups whose states production abandoned when it was restored or rolled back to an earlier state. Pure.

Production's history is a path. It leads back from now to the latest restore that replaced production. From the restored
state, it leads back to the previous restore, and so on. If ZFS created the snapshots of a backup outside that path, the
backup is not a past state of production, even if it is the newest backup.

`zfs rollback` leaves no record. A rollback destroys the later snapshots and bookmarks of its dataset. zsnapdb leaves a
bookmark for each stored backup on the dataset. So if production has neither a snapshot nor a bookmark of the newest
backups, these backups are abandoned too. `zfs receive -F` keeps bookmarks of the data that it replaces.
`zfs/replaced_data.py` finds these bookmarks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from zsnapdb.base.patterns import BackupId, Guid
from zsnapdb.planning import creation_order
from zsnapdb.planning.creation_order import PlacedLink
from zsnapdb.planning.repository.host_backup_record import RecordPart

_NOW = 2**64
"""A number greater than every transaction group."""


class LocatedBackup(Protocol):
    """A backup with its pool and the transaction group of its snapshots."""

    @property
    def backup_id(self) -> str: ...
    @property
    def pool_guid(self) -> int: ...
    @property
    def createtxg(self) -> int: ...


@dataclass(frozen=True)
class ProductionPoints:
    """The snapshots and bookmarks of production's datasets, which are in one pool.

    The field `guids` contains their GUIDs, and the GUIDs of the snapshots from which the datasets were cloned. The
    field `oldest` is the lowest transaction group of a snapshot or bookmark, or None if there is none. The field
    `abandoned` contains the GUIDs of bookmarks whose data was replaced.
    """

    pool_guid: int
    guids: Collection[int]
    oldest: int | None
    abandoned: Collection[int] = ()


class ProductionRestore(RecordPart):
    """A restore whose datasets replaced production's datasets.

    The restored state is transaction group `base_group` of the pool `base_pool`. After the restore, production
    continues in the pool `pool` after transaction group `group`.
    """

    restore_id: BackupId
    base_pool: Guid
    base_group: Guid
    pool: Guid
    group: Guid


class ProductionRestoreRecord(RecordPart):
    """The restores that replaced an instance's production, oldest first."""

    format: Literal[1] = 1
    restores: tuple[ProductionRestore, ...] = ()

    @property
    def last(self) -> ProductionRestore | None:
        return self.restores[-1] if self.restores else None

    def with_restore(self, made: ProductionRestore) -> ProductionRestoreRecord:
        """Return the record with one more restore. A restore that is already recorded stays unchanged."""
        if any(one.restore_id == made.restore_id for one in self.restores):
            return self
        return ProductionRestoreRecord(restores=(*self.restores, made))

    def as_of(self, restore_id: str | None) -> ProductionRestoreRecord:
        """Return the record up to the restore whose datasets production uses now; empty if `restore_id` is None.

        If an operator puts replaced datasets back by hand, the later restores no longer count.
        """
        ids = [one.restore_id for one in self.restores]
        count = ids.index(restore_id) + 1 if restore_id in ids else 0
        return ProductionRestoreRecord(restores=self.restores[:count])

    def undone_since(self, present: ProductionRestoreRecord) -> ProductionRestoreRecord:
        """Return the record with only those restores that `present` lacks. The argument is a result of `as_of`."""
        return ProductionRestoreRecord(restores=self.restores[len(present.restores) :])

    def discarded(self, backups: Sequence[LocatedBackup], production: Collection[int]) -> dict[str, str]:
        """Return the ids of the backups that were made on datasets of restores that an operator later undid by hand.

        The result maps each id to its restore. Backups of the pools in `production` (production's pool GUIDs) are left
        out, because within a pool, transaction groups do not distinguish the datasets.
        """
        found: dict[str, str] = {}
        for one in (one for one in self.restores if one.pool not in production):
            of_pool = [backup for backup in backups if backup.pool_guid == one.pool]
            earlier = creation_order.made_before(of_pool, one.group + 1)
            found |= {backup.backup_id: one.restore_id for backup in of_pool if backup not in earlier}
        return found

    def taken_back(self, backups: Iterable[LocatedBackup]) -> dict[str, str]:
        """Return the ids of the backups that are not on production's path, each with the restore that abandoned it.

        Backups of pools that no restore mentions are left out, because the history of these pools is unknown.
        """
        path = list(self._path())
        pools = {pool for pool, _, _ in path}
        found: dict[str, str] = {}
        for backup in backups:
            place = backup.createtxg
            is_on = any(pool == backup.pool_guid and low < place <= high for pool, low, high in path)
            if backup.pool_guid in pools and not is_on:
                left = [o for o in self.restores if (o.base_pool, o.base_group < place) == (backup.pool_guid, True)]
                found[backup.backup_id] = (left or self.restores)[-1].restore_id
        return found

    def is_since(self, backup: LocatedBackup) -> bool:
        """Return whether ZFS created the backup's snapshots after the latest restore replaced production."""
        last = self.last
        return (
            last is not None
            and backup.pool_guid == last.pool
            and not creation_order.made_before([backup], last.group + 1)
        )

    def continued(self, backups: Sequence[LocatedBackup]) -> tuple[str, ...]:
        """Return the id of the newest backup if production comes from it. The backups are ordered, oldest first."""
        last = self.last
        if last is None or not backups:
            return ()
        newest = backups[-1]
        is_base = (newest.pool_guid, newest.createtxg) == (last.base_pool, last.base_group)
        return (newest.backup_id,) if is_base else ()

    def _path(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of production's path, latest first.

        A part consists of a pool, the last transaction group before the part, and the last group of the part.
        """
        last = self.last
        if last is None:
            return
        pool, until = last.pool, _NOW
        for one in reversed(self.restores):
            if one.pool == pool and one.group > until:
                # This restore happened in a history that a later restore abandoned.
                continue
            if one.pool == pool:
                yield pool, one.group, until
            else:
                # Between the two restores, production was moved to another pool without a restore.
                yield pool, -1, until
                yield one.pool, one.group, _NOW
            pool, until = one.base_pool, one.base_group
        yield pool, -1, until


def rolled_back(
    backups: Sequence[PlacedLink], production: ProductionPoints, record: ProductionRestoreRecord
) -> list[str]:
    """Return the ids of the newest backups that no longer have a snapshot or bookmark on production.

    The argument `backups` is ordered oldest first. The function considers only backups that were created after the
    oldest snapshot or bookmark and after the latest recorded restore. Before that time, production may have used other
    datasets.
    """
    abandoned: list[str] = []
    for backup in reversed(backups):
        is_lost = any(volume.guid in production.abandoned for volume in backup.volumes)
        is_known = not is_lost and any(volume.guid in production.guids for volume in backup.volumes)
        is_comparable = backup.pool_guid == production.pool_guid and (record.last is None or record.is_since(backup))
        is_later = production.oldest is not None and not creation_order.made_before([backup], production.oldest + 1)
        if is_known or not (is_lost or (is_comparable and is_later)):
            break
        abandoned.append(backup.backup_id)
    return abandoned
