"""Finds one transaction with its rows: in the server's binlogs, else in the archive."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base import server_files
from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.base.gtid import contains
from zsnapdb.base.model import parse_gtids
from zsnapdb.base.patterns import below
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.files import LocalFiles
from zsnapdb.mysql.binlog.row_changes import row_changes
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.undo import LoggedRow
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

HINT = "restore beside the server, or rescue the table: `zsnapdb rescue --to before-GTID`"


@dataclass(frozen=True)
class LoggedTransaction:
    """A transaction in the binlogs of the server, and its rows."""

    transaction: TransactionChanges
    rows: tuple[LoggedRow, ...]

    @property
    def began(self) -> int:
        """When the transaction began, in seconds since 1970: not after its first statement, nor after its commit."""
        return min(self.transaction.began, self.transaction.committed) // 1_000_000


def find_transaction(instance: Instance, files: LocalFiles, gtid: str) -> LoggedTransaction:
    """Return a transaction by its GTID, as the server prints it.

    The archive is read only if the server's own binlogs do not have it. NotThere if neither has the transaction.
    """
    live = [binlog for binlog in files.list() if not binlog.problem]
    for binlog in live:
        with files.open(binlog.name) as file:
            found = _found_in(file, binlog.name, gtid)
        if found is not None:
            return found
    found = _archived(instance, files, live, gtid)
    if found is None:
        raise NotThere(
            f"transaction {gtid} is not in the binlogs that the server has, nor in the archive of its history",
            hint="`zsnapdb binlog find` lists transactions; `zsnapdb rescue --to before-GTID` brings tables back",
        )
    return found


def _found_in(file: BinaryIO, name: str, gtid: str) -> LoggedTransaction | None:
    """Return the transaction from a binlog; None if the binlog does not have it."""
    for transaction in transaction_changes(file, name):
        if transaction.gtid == gtid:
            _check_rows(transaction, gtid)
            return LoggedTransaction(transaction, tuple(row_changes(file, name, transaction)))
    return None


def _archived(instance: Instance, files: LocalFiles, live: list[ServerBinlog], gtid: str) -> LoggedTransaction | None:
    """Return the transaction from the archive; None if the server's present history does not have it there."""
    archive = BinlogArchive(instance.open_repository(), instance.name)
    stored = archive.load().files
    on_server = {files.opening(binlog.name).fingerprint for binlog in live}
    present = {file.incarnation for file in stored if file.fingerprint in on_server}
    history = [file for file in stored if file.incarnation in present and _may_hold(file, gtid)]
    if len(present) != 1:
        return None
    with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
        for file in sorted(history, key=lambda file: file.number):
            instance.events.tell(f"fetching {file.name} of history {file.incarnation}")
            path = Path(below(folder, f"{file.incarnation}-{file.name}"))
            archive.fetch(file, path)
            with server_files.open_to_read(path) as fetched:
                found = _found_in(fetched, file.name, gtid)
            if found is not None:
                return found
            path.unlink()
    return None


def _may_hold(file: ArchivedFile, gtid: str) -> bool:
    try:
        wanted = parse_gtids(file.flavour, gtid)
    except ValueError:
        return False
    own, before = file.gtids, file.previous
    return own is not None and contains(own, wanted) and not (before is not None and contains(before, wanted))


def _check_rows(transaction: TransactionChanges, gtid: str) -> None:
    """Raise PreflightError unless the transaction changed rows, and the binlog has all that it changed."""
    objection = None
    if transaction.statements or transaction.other_statements:
        objection = "it has statements whose rows are not in the binlog, such as DDL"
    elif transaction.is_prepared or transaction.has_incident:
        objection = "; ".join(transaction.unknown)
    elif not transaction.rows:
        objection = "it changed no row"
    if objection is not None:
        raise PreflightError(f"transaction {gtid} cannot be undone by rows: {objection}", hint=HINT)
