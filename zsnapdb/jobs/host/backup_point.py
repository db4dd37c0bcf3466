"""Where a stored backup stands in the history of its server: the starting point of a route through the binlogs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zsnapdb.base.model import BinlogCoordinates, backup_time, server_name
from zsnapdb.planning.binlog.route import BackupPoint
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest, is_of_server, server_source

_MICROSECONDS = 1_000_000
_LONGEST_WAIT = 86_400 * _MICROSECONDS
"""The longest time between the id of a backup and its snapshot, in microseconds: the largest `lock.budget`."""


def points_of(backups: Iterable[Manifest | Summary]) -> list[BackupPoint]:
    """Return the points of the backups of servers (oldest first); backups of other kinds are left out.

    The time of a backup that is later than that of a younger one was given by a wrong clock. The earlier time counts.
    """
    points = [point_of(backup) for backup in backups if is_of_server(backup)]
    for at in range(len(points) - 2, -1, -1):
        following = points[at + 1]
        taken = min(points[at].taken, following.taken)
        points[at] = replace(points[at], taken=taken, before=max(taken, min(points[at].before, following.before)))
    return points


def point_of(manifest: Manifest | Summary) -> BackupPoint:
    """Return where a backup of a server stands in its history. PreflightError if the backup is of another kind."""
    source = server_source(manifest)
    position = source.position.position(source.server.flavour)
    taken = round(backup_time(manifest.backup_id).timestamp()) * _MICROSECONDS
    created = round(manifest.created.timestamp() * _MICROSECONDS)
    where = position.coordinates
    return BackupPoint(
        backup_id=manifest.backup_id,
        taken=taken,
        before=max(taken, min(created, taken + _LONGEST_WAIT)),
        server=server_name(source.server.server_uuid, source.server.server_id),
        coordinates=BinlogCoordinates(where.file, where.offset) if where else None,
        gtids=position.gtids,
        flavour=source.server.flavour,
        fingerprint=position.fingerprint,
        last_gtid=position.last_gtid,
    )
