"""Prunes archived binlogs: removes those that are older than every backup that stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from zsnapdb.base.model import backup_time
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.archived_binlogs import points_of
from zsnapdb.jobs.record import archive_record
from zsnapdb.planning.binlog import retention
from zsnapdb.planning.binlog.retention import BinlogDecision
from zsnapdb.planning.repository.sweep import BinlogLeftover, SweptBinlog, decide_binlogs
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.binlog_removal import undescribed
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.repository import Repository


@dataclass(frozen=True)
class OldBinlog:
    """The decision on an archived file; `size` in bytes of the store."""

    decision: BinlogDecision
    file: ArchivedFile

    @property
    def size(self) -> int:
        return self.file.stored_size


def plan(
    instance: Instance, repository: Repository, kept: Collection[str], summaries: Iterable[Summary], *, knows_any: bool
) -> tuple[OldBinlog, ...]:
    """Return the decisions on the archived binlogs of an instance if the backups `kept` stay.

    Unreadable parts of the archive stay, and so do foreign binlogs. Nothing goes on a host that knows no backup.
    """
    old = expired(BinlogArchive(repository, instance.name), kept, summaries)
    files = [one.file for one in old]
    known = archive_record.known_binlogs(instance, repository, files) if knows_any and files else frozenset()
    return tuple(OldBinlog(_of_known(one.decision, known), one.file) for one in old)


def expired(archive: BinlogArchive, kept: Collection[str], summaries: Iterable[Summary]) -> tuple[OldBinlog, ...]:
    """Return the decisions on the archived binlogs of an instance if the backups `kept` stay, whoever archived them."""
    files = archive.load().files
    if not files:
        return ()
    points = [point for point in points_of(summaries) if point.backup_id in kept]
    times = [round(backup_time(name).timestamp()) * 1_000_000 for name in kept]
    decisions = retention.decide(points, min(times, default=None), files)
    return tuple(OldBinlog(decision, files[decision.at]) for decision in decisions)


def _of_known(decision: BinlogDecision, known: Collection[tuple[str, str]]) -> BinlogDecision:
    if not decision.remove or (decision.incarnation, decision.name) in known:
        return decision
    return replace(decision, remove=False, reason="foreign: this host did not archive it as it is described")


def binlog_leftovers(
    instance: Instance, repository: Repository, moment: datetime, after: float, *, knows_any: bool
) -> tuple[SweptBinlog, ...]:
    """Return the decisions on binlog objects without a description; `after` in seconds."""
    undescribed_binlogs = []
    for (incarnation, name), objects in undescribed(BinlogArchive(repository, instance.name)).items():
        times = [item.modified for item in objects if item.modified is not None]
        newest = max(times) if len(times) == len(objects) else None
        undescribed_binlogs.append(
            BinlogLeftover(
                incarnation, name, frozenset(item.key for item in objects), sum(item.size for item in objects), newest
            )
        )
    archived = archive_record.archived_here(instance, repository)
    return decide_binlogs(undescribed_binlogs, moment, after, archived, knows_any=knows_any)
