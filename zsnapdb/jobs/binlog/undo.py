"""`zsnapdb undo`: shows the changes of a transaction, and writes a script that undoes it.

Only `apply` changes the server: it runs the script on the server. Before that, `jobs/clone/undo_trial.py` tests the
script on clones. Binlogs on the server are read in place, and earlier binlogs from the archive. The values are decoded
with the present table definitions, after a check that the definitions have not changed since the transaction. The
present rows show whether a row was changed after the transaction.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base import files, safe_open
from zsnapdb.base.domain_types import parse_gtids
from zsnapdb.base.errors import ConsistencyError, ExistsError, NotFound, PreflightError, ServerError
from zsnapdb.base.gtid import contains
from zsnapdb.base.patterns import below
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.server_binlogs import LocalFiles, find_source
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.mysql.accounts import account_privileges
from zsnapdb.mysql.binlog.transaction_changes import row_changes, transaction_changes
from zsnapdb.mysql.schema.definitions import TableShapes
from zsnapdb.mysql.schema.tables import exact_rows
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.row_values import METADATA_HINT, TableShape, logged_difference
from zsnapdb.planning.binlog.undo import LoggedRow, RowChange, StateBefore
from zsnapdb.repository.binlog_descriptions import ArchivedFile


@dataclass(frozen=True)
class LoggedTransaction:
    """A transaction from the server's binlogs or the archive, and the rows that it changed."""

    transaction: TransactionChanges
    rows: tuple[LoggedRow, ...]

    @property
    def began(self) -> int:
        """The start of the transaction in seconds since 1970.

        The result is the time of the first statement or of the commit, whichever is earlier.
        """
        return min(self.transaction.began, self.transaction.committed) // 1_000_000


def find_transaction(instance: Instance, files: LocalFiles, gtid: str) -> LoggedTransaction:
    """Return the transaction with this GTID. The GTID must be in the server's notation.

    The archive is read only if the server's own binlogs lack the transaction.

    Raises:
        NotFound: the transaction is neither in the server's binlogs nor in the archive.
    """
    live = [binlog for binlog in files.list() if not binlog.problem]
    for binlog in live:
        with files.open(binlog.name) as file:
            found = _found_in(file, binlog.name, gtid)
        if found is not None:
            return found
    found = _archived(instance, files, live, gtid)
    if found is None:
        raise NotFound(
            f"transaction {gtid} is not in the binlogs that the server has, nor in the archive of its history",
            hint="`zsnapdb binlog find` lists transactions",
        )
    return found


def _found_in(file: BinaryIO, name: str, gtid: str) -> LoggedTransaction | None:
    """Return the transaction from a binlog; None if the binlog does not contain it."""
    for transaction in transaction_changes(file, name):
        if transaction.gtid == gtid:
            _check_rows(transaction, gtid)
            return LoggedTransaction(transaction, tuple(row_changes(file, name, transaction)))
    return None


def _archived(instance: Instance, files: LocalFiles, live: list[ServerBinlog], gtid: str) -> LoggedTransaction | None:
    """Return the transaction from the archive; None if the server's present history does not contain it."""
    archive = instance.archive(instance.open_repository())
    stored = own_archived_binlogs.known_part(instance, archive.repository, archive.load())[0].files
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
            with safe_open.open_to_read(path) as fetched:
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
    """Raise PreflightError unless the transaction changed rows and the binlog contains all of its changes."""
    objection = None
    if transaction.statements or transaction.other_statements:
        objection = "it has statements whose rows are not in the binlog, such as DDL"
    elif transaction.is_prepared or transaction.has_incident:
        objection = "; ".join(transaction.unknown)
    elif not transaction.rows:
        objection = "it changed no row"
    if objection is not None:
        raise PreflightError(
            f"transaction {gtid} cannot be undone by rows: {objection}", hint=planning.rescue_hint(gtid)
        )


@dataclass(frozen=True)
class Conflict:
    """A row that was changed after the transaction.

    `is_new` is set if the transaction deleted the row, and a new row with the same key exists.
    """

    change: RowChange
    is_new: bool


@dataclass(frozen=True)
class Undo:
    """A transaction to undo: its changes in binlog order, and the rows whose later changes prevent the undo.

    If `is_tried` is set, the undo was tested on clones. In this case, each changed row occurs once, and no change is
    missing. In the test, the undo returned a clone to the state before the transaction. `file` is the written script,
    or None if none was written. `is_applied` is set if the undo ran on the server too.
    """

    instance: str
    gtid: str
    transaction: TransactionChanges
    changes: tuple[RowChange, ...]
    conflicts: tuple[Conflict, ...]
    file: Path | None = None
    is_tried: bool = False
    is_applied: bool = False

    @property
    def changed_since(self) -> str:
        """A text that says how many rows were changed since the transaction."""
        rows = len(planning.expectations(self.changes))
        return f"{len(self.conflicts)} of {rows} rows were changed since"


def refuse_existing(into: Path | None) -> None:
    """Raise ExistsError if the file for the script exists."""
    if into is not None and into.exists():
        raise ExistsError(f"{into} exists", hint="name a file that does not exist")


def undo(instance: Instance, gtid: str) -> Undo:
    """Return the undo of the transaction. The server is not changed.

    Raises:
        NotFound: the transaction is neither in the server's binlogs nor in the archive.
        PreflightError: the transaction cannot be undone. The message contains the reason.
    """
    with open_session(instance) as session:
        logged = find_transaction(instance, LocalFiles(find_source(session)), gtid)
        _check_rights(session)
        changes = _changes(session, logged, gtid)
        for statement in planning.SESSION:
            session.query(statement)
        conflicts = [
            Conflict(expected.change, expected.is_absent)
            for expected in planning.expectations(changes)
            if bool(session.query(expected.question)) is expected.is_absent
        ]
    return Undo(instance.name, gtid, logged.transaction, tuple(changes), tuple(conflicts))


def who_sees_triggers(own: Instance, other: Instance, *, is_named: bool) -> Instance:
    """Return the instance `own` if its account can see triggers, else the instance `other`.

    If the user did not choose the account of `other` and the server refuses this account, return `own` in any case.
    """
    with open_session(own) as session:
        if _sees_triggers(session):
            return own
    if not is_named:
        try:
            other.session().close()
        except ServerError:
            return own
    return other


def refuse_conflicts(undone: Undo) -> None:
    """Raise PreflightError if a row was changed since the transaction."""
    if undone.conflicts:
        raise PreflightError(
            f"{undone.changed_since} transaction {undone.gtid}, the first in {undone.conflicts[0].change.shape.name}",
            hint=f"`zsnapdb undo {undone.instance} --gtid {undone.gtid}` lists them, with commands that show their"
            f" former state; nothing was changed",
        )


def write(instance: Instance, undone: Undo, into: Path) -> Undo:
    """Write the script of a tested undo into a new file.

    Raises:
        ExistsError: the file exists.
    """
    refuse_existing(into)
    changes = undone.changes
    comment = f"Undoes transaction {undone.gtid} of instance {instance.name}: {len(changes)} changes of rows."
    files.replace(into, planning.script(changes, comment).encode())
    return replace(undone, file=into)


def _check_rights(session: Session) -> None:
    if not _sees_triggers(session):
        raise PreflightError(
            "it is not known whether the tables have triggers: the account lacks the privilege TRIGGER, or has it"
            " through a role",
            hint="add --user root, or grant SELECT and TRIGGER on *.* to the account of the instance",
        )


def _sees_triggers(session: Session) -> bool:
    return "TRIGGER" in (account_privileges(session) or ())


def _changes(session: Session, logged: LoggedTransaction, gtid: str) -> list[RowChange]:
    reader = TableShapes(session)
    shapes: dict[tuple[str, str], TableShape] = {}
    changes: list[RowChange] = []
    for row in logged.rows:
        shape = shapes.get((row.schema, row.table))
        if shape is None:
            shape = shapes[row.schema, row.table] = reader.read(row.schema, row.table)
            _object(gtid, shape, planning.shape_objection(shape))
        _object(gtid, shape, logged_difference(shape, row.columns, logged.began), METADATA_HINT)
        _object(gtid, shape, planning.row_objection(shape, row))
        try:
            changes.append(planning.row_change(shape, row))
        except ValueError as error:
            _object(gtid, shape, f"a value of {shape.name} cannot be read: {error}")
    if changes:
        _object(gtid, changes[0].shape, planning.count_objection(changes))
    return changes


def _object(gtid: str, shape: TableShape, objection: str | None, hint: str = "") -> None:
    if objection is not None:
        raise PreflightError(
            f"transaction {gtid} cannot be undone by rows: {objection}",
            hint="; ".join(filter(None, (planning.rescue_hint(gtid, [shape.name]), hint))),
        )


_LONGEST_SECONDS = 86400.0
_READ_ONLY = ("read_only", "super_read_only")


def check(instance: Instance) -> None:
    """Raise PreflightError if the server is read-only; change nothing.

    A change made on a replica itself would make the replica's history differ from the history of its source.
    """
    with instance.session(read_timeout=_LONGEST_SECONDS) as session:
        seen = global_variables(session, _READ_ONLY)
    closed = [name for name in _READ_ONLY if seen.get(name, "OFF") not in ("OFF", "0")]
    if closed:
        raise PreflightError(
            f"the server of {instance.name} has {closed[0]} = {seen[closed[0]]}",
            hint="undo the transaction on its source, where the binlogs have it too",
        )


def apply(instance: Instance, undone: Undo, before: StateBefore) -> Undo:
    """Undo the transaction on the server in one new transaction, which changes either all rows or none.

    The account must be able to change these rows. Before the commit, every table must have the same definition as in
    the clone. Every row must equal the row that the clone had directly before the transaction.

    Raises:
        PreflightError: the definitions or rows are not as expected; nothing was undone.
        ConsistencyError: a row differed, so the undo was rolled back.
    """
    try:
        with instance.session(read_timeout=_LONGEST_SECONDS) as session:
            _run(instance, session, undone, before)
    except ServerError as error:
        if not _is_undone(instance, undone, before):
            raise PreflightError(
                f"nothing was undone: {error.message}",
                hint="a row was changed since, the account may not change it, or another session kept it locked",
            ) from error
        # Ignore the error, because the connection was lost only after the commit.
    return replace(undone, is_applied=True)


def _run(instance: Instance, session: Session, undone: Undo, before: StateBefore) -> None:
    """Run the statements, check their result, and commit. If the session ends earlier, the server rolls back."""
    for statement in (*planning.opening(undone.changes), *map(planning.holding, before.shapes)):
        session.query(statement)
    # The open transaction now locks the definitions of its tables. DDL has to wait until the transaction ends.
    with instance.session() as other:
        reader = TableShapes(other)
        now = [reader.read(shape.schema, shape.table) for shape in before.shapes]
        difference = before.definition_difference(now)
    if difference is not None:
        raise PreflightError(
            f"nothing was undone: {difference}",
            hint="run the command again; another session changed the definition meanwhile",
        )
    for statement in planning.changing(undone.changes):
        session.query(statement)
    wrong = None
    if int(session.value(planning.COUNTED)) == len(undone.changes):
        wrong = before.row_difference(exact_rows(session, before.questions, undone.gtid))
    if wrong is not None:
        session.query("ROLLBACK")
        raise ConsistencyError(
            f"the undo of transaction {undone.gtid} was rolled back: {wrong}",
            hint=f"nothing was changed; {planning.rescue_hint(undone.gtid, [shape.name for shape in before.shapes])}",
        )
    for statement in planning.ending(undone.changes):
        session.query(statement)


def _is_undone(instance: Instance, undone: Undo, before: StateBefore) -> bool:
    with open_session(instance) as session:
        for statement in planning.SESSION:
            session.query(statement)
        return before.row_difference(exact_rows(session, before.questions, undone.gtid)) is None
