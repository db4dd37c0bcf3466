"""What of an instance's server can be recovered from its backups and its archived binlogs."""

from __future__ import annotations

from collections.abc import Iterable

from zsnapdb.jobs.backup_point import points_of
from zsnapdb.jobs.instance import Instance
from zsnapdb.planning.binlog.window import Window, window
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.repository import Repository


def recoverable(instance: Instance, repository: Repository) -> Window:
    """Return what can be recovered now. Reads the repository alone; manifests that were read before are cached."""
    backups = instance.summaries(repository).backups
    return window_of(backups, BinlogArchive(repository, instance.name).load())


def window_of(backups: Iterable[Manifest | Summary], archive: Archive) -> Window:
    """Return what can be recovered from backups (those of other sources do not count) and an archive."""
    return window(points_of(backups), archive.files, archive.state)
