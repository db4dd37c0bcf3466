"""Resets a clone by undoing the row changes since its handover, which takes only as long as a few statements.

The changes are read from the clone's own binlog. So the clone's users must not be able to keep changes out of that
binlog. All changes are undone in one transaction, which commits only if every row has its old value. If the result is
uncertain, an error is raised, and the caller replaces the clone's data instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.quantities import size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import masking_requirement, reset_baseline
from zsnapdb.jobs.clone.clone_info import SOURCE_PART, CloneInfo
from zsnapdb.jobs.clone.lifecycle import server_of, session
from zsnapdb.jobs.clone.reset_baseline import ResetBaseline
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.mysql.accounts import end_others, has_prepared_transactions, routine_of_another, wait_briefly_for_locks
from zsnapdb.mysql.binlog.binlog_files import key_of, open_binlog
from zsnapdb.mysql.binlog.tail import digest_of, index_entries, tail_of
from zsnapdb.mysql.binlog.transaction_changes import row_changes, transaction_changes
from zsnapdb.mysql.probe import binlog_status
from zsnapdb.mysql.schema.counters import analyze_again, counters, counters_of, definitions, set_back
from zsnapdb.mysql.schema.definitions import TableShapes
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import clock, stop_logging
from zsnapdb.planning.binlog import undo
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.row_values import TableShape, logged_difference
from zsnapdb.planning.binlog.undo import LoggedRow, RowChange
from zsnapdb.planning.clone import row_reset as planning
from zsnapdb.planning.clone.isolation import AccountRights
from zsnapdb.planning.server_copy.copy_options import binlog_paths

_LOCK_SECONDS = 2
"""The time in seconds for which a statement of the undo waits for a lock."""
_AFTER_ALL = 1 << 62
"""A time later than any change of a table definition.

With this time, no definition is refused because of its age. The binlog contains every definition change after the
recorded state, and such a change prevents the undo.
"""
_ROUNDS = 3
"""The maximum number of rounds.

Each later round undoes the transactions that were committed during the previous round.
"""
_HINT = "the data is replaced instead"


@dataclass(frozen=True)
class UndoneRows:
    """The result of an undo: the numbers of transactions and changed rows, and the duration in seconds."""

    transactions: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class _Since:
    changes: tuple[RowChange, ...]
    transactions: int
    file: str
    offset: int


def undo_rows(settings: Settings, host: Host, info: CloneInfo) -> UndoneRows:
    """Undo all row changes in the running clone since its recorded state. The caller must hold the clone's lock.

    Afterwards all sessions of users have ended, every row and counter has its old value, and the statistics match the
    rows.

    Raises:
        ZsnapdbError: the result is not certain; the data must be replaced.
    """
    began, state = time.monotonic(), _state(settings, host, info)
    copy, transactions, rows = server_of(settings, info).copy, 0, 0
    with session(info) as own:
        stop_logging(own)
        wait_briefly_for_locks(own, _LOCK_SECONDS)
        for _ in range(_ROUNDS):
            end_others(own)
            since = _since(copy, own, state)
            _undo(own, since.changes)
            transactions, rows = transactions + since.transactions, rows + len(since.changes)
            state = _moved_baseline(copy, state, since)
            # Sessions that began before the undo may have committed during the undo. End them now; the next round
            # undoes their commits.
            end_others(own)
            if _end(own) == (state.file, state.offset):
                _set_counters_back(own, state)
                analyze_again(own, state.at)
                state = state.model_copy(update={"at": int(clock(own))})
                _refuse(None if definitions(own) == state.definitions else "the definition of a table differs")
                # Use the end that was already read. If the end were read again, a write in between would not be treated
                # as a change.
                reset_baseline.store(host, info.name, state)
                return UndoneRows(transactions, rows, time.monotonic() - began)
    raise PreflightError("other sessions keep writing", hint=_HINT, about=())


def _moved_baseline(copy: Copy, state: ResetBaseline, since: _Since) -> ResetBaseline:
    folder = reset_baseline.binlog_folder(copy)
    if folder is None:
        raise PreflightError("the server writes no binlog", hint=_HINT, about=())
    with open_binlog(folder / since.file, copy.keys) as file:
        digest, inode = digest_of(file, since.offset), os.fstat(file.fileno()).st_ino
    return state.model_copy(update={"file": since.file, "offset": since.offset, "digest": digest, "inode": inode})


def plan(settings: Settings, host: Host, info: CloneInfo) -> int:
    """Return how many row changes `undo_rows` would undo now; change nothing.

    Raises the errors of `undo_rows`.
    """
    state = _state(settings, host, info)
    with session(info) as own:
        return len(_since(server_of(settings, info).copy, own, state).changes)


def _state(settings: Settings, host: Host, info: CloneInfo) -> ResetBaseline:
    """Return the recorded state of the clone.

    Raises:
        PreflightError: there is no record, or an undo of rows is impossible for this clone.
    """
    _refuse(_unsuitable(settings, info))
    state = reset_baseline.read(host, info)
    if state is None:
        raise PreflightError("the initial state of the server was not recorded", hint=_HINT, about=())
    is_masked_so = state.rules == masking_requirement.rules_of_clone(settings, info)
    _refuse(None if is_masked_so else "the masking rules have changed")
    _refuse(None if state.counters is not None else f"it has more than {planning.MOST_TABLES} tables")
    _refuse(
        None if state.locks_accounts else "the accounts of its source can log in, and keep changes out of the binlog"
    )
    return state


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise PreflightError(reason, hint=_HINT, about=())


def _unsuitable(settings: Settings, info: CloneInfo) -> str | None:
    """Return why row changes in the clone cannot be undone; None if an undo is possible."""
    if info.instance not in settings.instance:
        return f"instance {info.instance} is no longer configured"
    if info.phase is not CopyPhase.READY or info.pid is None:
        return "its server does not run"
    if not info.has_original:
        return "it has other data than it was created from"
    if info.follows is not None or info.part == SOURCE_PART:
        return "it replicates"
    if info.quota and 2 * info.own_bytes > info.quota:
        # An undo does not free the space that the changes occupy in the server's files.
        return f"it has {size(info.own_bytes)} of the {size(info.quota)} that it may have"
    return hides_changes(settings, info)


def hides_changes(settings: Settings, info: CloneInfo) -> str | None:
    """Return how the clone's users could keep changes out of its binlog; None if they cannot."""
    if info.rights is not AccountRights.SCHEMAS or settings.clones.accounts != "lock":
        return "its users may keep changes out of the binlog"
    return None


def _end(own: Session) -> tuple[str, int]:
    status = binlog_status(own)
    position = status.get("Position", "")
    return status.get("File", ""), int(position) if position.isdecimal() else 0


def _since(copy: Copy, own: Session, state: ResetBaseline) -> _Since:
    _refuse(planning.log_objection(binlog_status(own)))
    routine = routine_of_another(own)
    _refuse(f"routine {routine} runs with the rights of another account" if routine is not None else None)
    _refuse("there are prepared XA transactions" if has_prepared_transactions(own) else None)
    _refuse(None if definitions(own) == state.definitions else "the definition of a table differs")
    file, offset = _end(own)
    tables = _Tables(own)
    changes: list[RowChange] = []
    count = 0
    for transaction, rows in _transactions(copy, state, file, offset):
        _refuse(planning.transaction_objection(transaction))
        count += 1
        if len(changes) + transaction.rows > planning.MOST_CHANGES:
            _refuse(f"more than {planning.MOST_CHANGES} rows were changed")
        changes += [tables.change(row) for row in rows]
    _refuse(planning.changes_objection(changes))
    return _Since(tuple(changes), count, file, offset)


def _transactions(
    copy: Copy, state: ResetBaseline, last: str, end: int
) -> Iterator[tuple[TransactionChanges, list[LoggedRow]]]:
    """Yield the transactions after the recorded end, up to `end` in the newest file, with their rows.

    Raises:
        PreflightError: the binlogs do not continue the recorded binlog without a gap; a user may have reset them.
    """
    folder, index = reset_baseline.binlog_folder(copy), binlog_paths(copy.variables, "log_bin")
    if folder is None or index is None:
        raise PreflightError("the server writes no binlog", hint=_HINT, about=())
    names = [Path(entry).name for entry in index_entries(Path(copy.paths.translate(index[1])))]
    if state.file not in names or names[-1] != last:
        raise PreflightError(f"the binlog index does not connect {state.file} to {last}", hint=_HINT, about=())
    for name in names[names.index(state.file) :]:
        with open_binlog(folder / name, copy.keys) as file:
            _refuse("its binlog is encrypted" if key_of(file) is not None else None)
            _refuse(_other_file(file, name, state))
            tail = tail_of(file, name)
            if (tail.offset < end) if name == last else bool(tail.unfinished):
                raise PreflightError(f"the end of {name} cannot be read", hint=_HINT, about=())
            for transaction in transaction_changes(file, name, state.offset if name == state.file else None):
                if name == last and transaction.end > end:
                    return
                yield transaction, row_changes(file, name, transaction)


def _other_file(file: BinaryIO, name: str, state: ResetBaseline) -> str | None:
    """Return why the file is not the recorded binlog although it has the same name; None if it is that binlog."""
    if name != state.file:
        return None
    is_same = os.fstat(file.fileno()).st_ino == state.inode and file.seek(0, os.SEEK_END) >= state.offset
    return None if is_same and digest_of(file, state.offset) == state.digest else f"{name} is another file than it was"


class _Tables:
    """The definitions of the changed tables. `change` raises an error for a row change that cannot be undone."""

    def __init__(self, own: Session) -> None:
        self._reader = TableShapes(own)
        self._known: dict[tuple[str, str], TableShape] = {}

    def change(self, row: LoggedRow) -> RowChange:
        """Return the row change, with the names of its columns.

        Raises:
            PreflightError: the change cannot be undone.
        """
        key = (row.schema, row.table)
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = self._reader.read(*key)
            _refuse(planning.table_objection(shape))
        _refuse(logged_difference(shape, row.columns, _AFTER_ALL) or undo.row_objection(shape, row))
        _refuse(planning.unreadable_objection(shape, row))
        try:
            return undo.row_change(shape, row)
        except ValueError as error:
            raise PreflightError(f"a value of {shape.name} cannot be read: {error}", hint=_HINT, about=()) from error


def _undo(own: Session, changes: tuple[RowChange, ...]) -> None:
    if not changes:
        return
    for statement in (*undo.opening(changes), *undo.changing(changes)):
        own.query(statement)
    wrong = int(own.value(undo.COUNTED)) != len(changes)
    wrong = wrong or any(bool(own.query(one.question)) is one.is_absent for one in undo.undone(changes))
    if wrong:
        own.query("ROLLBACK")
        raise PreflightError("a row differs from its last change in the binlog", hint=_HINT, about=())
    own.query("COMMIT")


def _set_counters_back(own: Session, state: ResetBaseline) -> None:
    wanted, now = state.by_table, counters(own, planning.MOST_TABLES)
    if now is None or wanted is None or now.keys() != wanted.keys():
        raise PreflightError("the set of tables with counters has changed", hint=_HINT, about=())
    moved = {table: value for table, value in wanted.items() if now[table] != value}
    if moved:
        set_back(own, moved)
        again = counters_of(own, moved)
        other = next((table for table, value in moved.items() if again.get(table) != value), None)
        if other is not None:
            # A server never sets the counter of a table to less than the largest value in the table.
            _refuse(f"the counter of {'.'.join(other)} is {again.get(other)} again, and was {wanted[other]}")
