"""Uses later backups in the repository to find the backups whose state production no longer has. Pure.

A host without production has no snapshots or bookmarks that would show a rollback. But later increments do not build on
backups whose state production has lost. Also, a server that was set back lacks the transactions of such a backup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.base.gtid import contains
from zsnapdb.planning.backup_chain import Link
from zsnapdb.planning.binlog.route_elements import BackupPoint


def abandoned_backups(backups: Sequence[Link], points: Mapping[str, BackupPoint]) -> frozenset[str]:
    """Return the ids of the backups that are not known to be earlier states of the newest backup.

    The argument `backups` contains the backups of one source, oldest first. The argument `points` contains their
    positions by id. The result may also contain a backup whose state production still has, for example if the backup
    was damaged and could not be the base of the next backup.
    """
    places = {_guids(backup): at for at, backup in enumerate(backups)}
    skipped: set[str] = set()
    for at, backup in enumerate(backups):
        bases = frozenset((volume.role, volume.from_guid) for volume in backup.volumes)
        base = places.get(bases)
        if base is not None and base < at:
            between = [one for one in backups[base + 1 : at] if _guids(one) not in (_guids(backup), bases)]
            skipped.update(one.backup_id for one in between)
    newest = points.get(backups[-1].backup_id) if backups else None
    if newest is not None:
        skipped.update(name for name, point in points.items() if not _may_continue(newest, point))
    return frozenset(skipped)


def _guids(backup: Link) -> frozenset[tuple[str, int | None]]:
    return frozenset((volume.role, volume.guid) for volume in backup.volumes)


def _may_continue(newest: BackupPoint, earlier: BackupPoint) -> bool:
    """Return whether the newest backup may continue an earlier backup, according to their positions."""
    if newest.gtids is not None and earlier.gtids is not None:
        return contains(newest.gtids, earlier.gtids)
    here, there = newest.coordinates, earlier.coordinates
    if newest.server != earlier.server or here is None or there is None:
        return True
    (base, _, number), (other, _, before) = here.file.rpartition("."), there.file.rpartition(".")
    return base != other or (int(number), here.offset) >= (int(before), there.offset)
