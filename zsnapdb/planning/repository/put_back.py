"""The restores that put production back to an earlier state, and which backups are of what they took back. Pure.

Production's present history is a path: from now back to the latest restore that took production's place, from there the
state which that restore began with and back to the restore before it, and so on. A backup whose snapshots ZFS made
beside that path is no state of present production, however new it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

from zsnapdb.base.patterns import BackupId, Guid
from zsnapdb.planning import order
from zsnapdb.planning.repository.host_record import RecordPart

_NOW = 2**64
"""Later than every transaction group."""


class Placed(Protocol):
    """A backup with its pool and the transaction group of its snapshots."""

    @property
    def backup_id(self) -> str: ...
    @property
    def pool_guid(self) -> int: ...
    @property
    def createtxg(self) -> int: ...


class PutBack(RecordPart):
    """A restore that took production's place.

    It began with the state of transaction group `base_group` in pool `base_pool`. Production goes on from it after
    transaction group `group` of pool `pool`.
    """

    restore_id: BackupId
    base_pool: Guid
    base_group: Guid
    pool: Guid
    group: Guid


class PutBackRecord(RecordPart):
    """The restores that took the place of an instance's production, oldest first."""

    format: Literal[1] = 1
    restores: tuple[PutBack, ...] = ()

    @property
    def last(self) -> PutBack | None:
        """The latest of them."""
        return self.restores[-1] if self.restores else None

    def with_restore(self, made: PutBack) -> PutBackRecord:
        """Return the record with one more restore. One that is recorded stays as it is."""
        if any(one.restore_id == made.restore_id for one in self.restores):
            return self
        return PutBackRecord(restores=(*self.restores, made))

    def as_of(self, restore_id: str | None) -> PutBackRecord:
        """Return the record up to the restore whose datasets are in production's place; empty for None.

        Whoever put the replaced datasets back by hand has undone what came later.
        """
        ids = [one.restore_id for one in self.restores]
        count = ids.index(restore_id) + 1 if restore_id in ids else 0
        return PutBackRecord(restores=self.restores[:count])

    def taken_back(self, backups: Iterable[Placed]) -> dict[str, str]:
        """Return the backups that are beside the path of production, each with the restore that left it, by id.

        Nothing is known about pools that no restore names: their backups are none of these.
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

    def is_since(self, backup: Placed) -> bool:
        """Whether ZFS made the backup after the latest restore took production's place."""
        last = self.last
        return last is not None and backup.pool_guid == last.pool and not order.made_before([backup], last.group + 1)

    def _path(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of the path, latest first: a pool, and after and up to which transaction groups it runs."""
        last = self.last
        if last is None:
            return
        pool, until = last.pool, _NOW
        for one in reversed(self.restores):
            if one.pool == pool and one.group > until:
                # It happened in a history that was left since.
                continue
            if one.pool == pool:
                yield pool, one.group, until
            else:
                # Between the two restores production moved to another pool by other means.
                yield pool, -1, until
                yield one.pool, one.group, _NOW
            pool, until = one.base_pool, one.base_group
        yield pool, -1, until
