"""Finds one transaction with its rows, and the later statements: in the server's binlogs, and in the archive before."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from zsnapdb import server_files
from zsnapdb.errors import DamagedError, NotThere, PreflightError
from zsnapdb.gtid import contains
from zsnapdb.jobs.binlog.files import LocalFiles
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import parse_gtids
from zsnapdb.mysql.row_changes import row_changes
from zsnapdb.mysql.transaction_changes import transaction_changes
from zsnapdb.patterns import below
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.undo import LoggedRow
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

HINT = "restore beside the server, or rescue the table: `zsnapdb rescue --to before-GTID`"


@dataclass(frozen=True)
class LoggedTransaction:
    """A transaction in the binlogs of the server, its rows, and the later transactions with statements."""

    transaction: TransactionChanges
    rows: tuple[LoggedRow, ...]
    later: tuple[TransactionChanges, ...]


@dataclass
class _Reading:
    """The search for a transaction, binlog after binlog, in their order."""

    gtid: str
    logged: TransactionChanges | None = None
    rows: tuple[LoggedRow, ...] = ()
    later: tuple[TransactionChanges, ...] = ()

    def add(self, path: Path, name: str) -> None:
        """Read a binlog."""
        with server_files.open_to_read(path) as file:
            for transaction in transaction_changes(file, name):
                if self.logged is not None and (transaction.statements or transaction.other_statements):
                    self.later = (*self.later, transaction)
                elif self.logged is None and transaction.gtid == self.gtid:
                    self.logged = transaction
            if self.logged is not None and not self.rows and self.logged.rows:
                _check_rows(self.logged, self.gtid)
                self.rows = tuple(row_changes(file, name, self.logged))

    def add_live(self, files: LocalFiles, live: list[ServerBinlog]) -> None:
        """Read the binlogs of the server. DamagedError if one after the transaction cannot be read."""
        for binlog in live:
            if not binlog.problem:
                self.add(files.path(binlog.name), binlog.name)
            elif self.logged is not None:
                raise DamagedError(binlog.problem, hint="see the server's error log and `zpool status`")

    def result(self) -> LoggedTransaction:
        """Return what was found. NotThere if it is nothing."""
        if self.logged is None:
            raise NotThere(
                f"transaction {self.gtid} is not in the binlogs that the server has, nor in the archive of its history",
                hint="`zsnapdb binlog find` lists transactions; `zsnapdb rescue --to before-GTID` brings tables back",
            )
        _check_rows(self.logged, self.gtid)
        return LoggedTransaction(self.logged, self.rows, self.later)


def find_transaction(instance: Instance, files: LocalFiles, gtid: str) -> LoggedTransaction:
    """Return a transaction by its GTID, as the server prints it.

    The archive is read only if the server's own binlogs begin after it. NotThere if neither has the transaction.
    PreflightError if a binlog between it and now is missing: what was done there is not known.
    """
    reading, live = _Reading(gtid), files.list()
    reading.add_live(files, live)
    if reading.logged is None:
        reading = _Reading(gtid)
        _add_archived(instance, files, live, reading)
        if reading.logged is not None:
            reading.add_live(files, live)
    return reading.result()


def _add_archived(instance: Instance, files: LocalFiles, live: list[ServerBinlog], reading: _Reading) -> None:
    archive = BinlogArchive(instance.open_repository(), instance.name)
    chosen = _from_transaction_on(archive.load(), files, live, reading.gtid)
    with tempfile.TemporaryDirectory(prefix="zsnapdb-") as folder:
        for file in chosen:
            instance.events.tell(f"fetching {file.name} of history {file.incarnation}")
            path = Path(below(folder, f"{file.incarnation}-{file.name}"))
            archive.fetch(file, path)
            reading.add(path, file.name)
            path.unlink()


def _from_transaction_on(
    archive: Archive, files: LocalFiles, live: list[ServerBinlog], gtid: str
) -> list[ArchivedFile]:
    """Return the archived binlogs of the server's present history from the one with the transaction, up to its own.

    None are returned if no archived binlog of that history has it.
    """
    readable = [binlog for binlog in live if not binlog.problem]
    on_server = {files.opening(binlog.name).fingerprint for binlog in readable}
    present = {file.incarnation for file in archive.files if file.fingerprint in on_server}
    history = sorted((file for file in archive.files if file.incarnation in present), key=lambda file: file.number)
    holding = [file.number for file in history if _may_hold(file, gtid)]
    if len(present) != 1 or not holding:
        return []
    wanted = [file for file in history if file.number >= holding[0] and file.fingerprint not in on_server]
    numbers = [file.number for file in wanted]
    following = min(binlog.number for binlog in readable)
    # A gap stands in the file after it, which may be the first that the server still has.
    if numbers != list(range(numbers[0], following)) or any(file.gap for file in history if file.number > numbers[0]):
        raise PreflightError(
            f"the archive lacks binlogs between transaction {gtid} and those of the server",
            hint=f"what was changed there is not known; {HINT}",
        )
    return wanted


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
