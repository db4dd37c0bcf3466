"""Whether the server of an instance gives GTIDs a second time, or would after a restore: asks backups and archive."""

from __future__ import annotations

from zsnapdb.base.model import parse_gtids, server_name
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.backup_point import points_of
from zsnapdb.planning.binlog.repeated_gtids import RepeatedGtids, given_again, repeated_gtids
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.repository import Repository


def repeated(archive: Archive) -> tuple[RepeatedGtids, ...]:
    """Return the GTIDs that the server whose binlogs were archived last gives again."""
    return repeated_gtids(archive.files)


def repeated_after(instance: Instance, repository: Repository, planned: RestorePlan, server_id: int) -> str:
    """Return the GTIDs that the restored server would give again under this server_id (MariaDB).

    These are GTIDs of backups and of archived binlogs, of any history, after the point. Empty if there are none.
    """
    if planned.point.gtids is None:
        return ""
    files = BinlogArchive(repository, instance.name).load().files
    points = points_of(instance.summaries(repository).backups)
    known = [file.reached for file in files] + [point.gtids for point in points]
    start = parse_gtids(planned.flavour, planned.point.gtids)
    return given_again(server_name(None, server_id), start, known)
