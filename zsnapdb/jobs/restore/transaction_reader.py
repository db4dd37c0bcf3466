"""The transactions of archived binlogs, as the choice of a point needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.patterns import below
from zsnapdb.jobs.host.local_binlogs import LocalBinlogs
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.planning.binlog.route import RouteFile, commit_time
from zsnapdb.planning.restore.boundaries import Scanned
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile


@dataclass
class TransactionReader:
    """Reads the transactions of archived binlogs.

    Each binlog is copied once into a temporary folder: from `local`, else it is fetched.
    """

    archive: BinlogArchive
    files: dict[tuple[str, str], ArchivedFile]
    folder: Path
    local: LocalBinlogs = field(default_factory=LocalBinlogs)

    def scan(self, binlog: RouteFile) -> Iterator[Scanned]:
        """Yield the transactions of a binlog, in order. The first request copies or fetches the binlog."""
        path = Path(below(self.folder, f"{binlog.incarnation}-{binlog.name}"))
        if not path.exists():
            archived = self.files[binlog.incarnation, binlog.name]
            if not self.local.copy(self.archive, archived, path):
                self.archive.fetch(archived, path)
        with path.open("rb") as file:
            for entry in transactions(file, binlog.name):
                yield Scanned(entry.gtid, entry.start, entry.end, commit_time(entry.committed))
