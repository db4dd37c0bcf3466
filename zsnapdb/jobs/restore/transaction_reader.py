"""The transactions of archived binlogs, as the choice of a point needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.patterns import below
from zsnapdb.jobs.host.archived_binlogs import LocalBinlogs
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.planning.binlog.commit_times import Witness
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
        archived = self.files[binlog.incarnation, binlog.name]
        witness = Witness(stretches=archived.span.stretches, end=archived.end)
        if not path.exists() and not self.local.copy(self.archive, archived, path):
            self.archive.fetch(archived, path)
        with path.open("rb") as file:
            for entry in transactions(file, binlog.name):
                seen = witness.contradiction(entry.start, entry.end, entry.committed)
                when = commit_time(entry.committed)
                between = None
                if seen is not None:
                    between = None if seen.earliest is None else commit_time(seen.earliest), commit_time(seen.latest)
                yield Scanned(entry.gtid, entry.start, entry.end, when, entry.is_exact, between)
