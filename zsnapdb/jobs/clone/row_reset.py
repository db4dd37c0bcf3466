"""Resets a clone by undoing the rows that were changed since its user got it: in the time of some statements.

What was changed is read from the clone's own binlog. It counts only where the clone's user cannot keep a change out of
it. All changes are undone in one transaction, which commits only if every row is as it was. What is not certain raises
an error; then the data is replaced, whatever was done to it here.
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
from zsnapdb.jobs.clone import handed, masking_policy
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.handed import HandedState
from zsnapdb.jobs.clone.lifecycle import server_of, session
from zsnapdb.jobs.clone.properties import SOURCE_PART
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.mysql.accounts import routine_of_another
from zsnapdb.mysql.binlog.opening import key_of, open_binlog
from zsnapdb.mysql.binlog.read import digest_of, index_entries, tail_of
from zsnapdb.mysql.binlog.transaction_changes import row_changes, transaction_changes
from zsnapdb.mysql.connections import end_others, has_prepared_transactions, wait_briefly_for_locks
from zsnapdb.mysql.probe import binlog_status
from zsnapdb.mysql.schema.counters import analyze_again, counters, counters_of, definitions, server_time, set_back
from zsnapdb.mysql.schema.definitions import TableShapes
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import stop_logging
from zsnapdb.planning.binlog import undo
from zsnapdb.planning.binlog.changes import TransactionChanges
from zsnapdb.planning.binlog.table_shape import TableShape, logged_difference
from zsnapdb.planning.binlog.undo import LoggedRow, RowChange
from zsnapdb.planning.clone import row_reset as planning
from zsnapdb.planning.clone.contract import AccountRights
from zsnapdb.planning.server_copy.identity import binlog_paths

_LOCK_SECONDS = 2
"""How long the undo waits for a lock of a session that came meanwhile."""
_AFTER_ALL = 1 << 62
"""Later than each definition of a table: one that was changed since would be in the binlog, and refuse the undo."""
_ROUNDS = 3
"""How often what others committed meanwhile is undone too."""
_HINT = "the data is replaced instead"


@dataclass(frozen=True)
class UndoneRows:
    """What a reset undid: the number of transactions and of changed rows, and how long it took (seconds)."""

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
    """Give the running clone the data again that its user got, by undoing rows; the caller holds the clone's lock.

    Afterwards every session of its users is ended, every row and counter is as it was, and statistics are of these
    rows. ZsnapdbError if that is not certain: then the data must be replaced.
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
            state = _moved(copy, state, since)
            # Whoever came between the look and the undo is ended now; what he committed is undone in the next round.
            end_others(own)
            if _end(own) == (state.file, state.offset):
                _set_counters_back(own, state)
                analyze_again(own, state.at)
                state = state.model_copy(update={"at": server_time(own)})
                _refuse(None if definitions(own) == state.definitions else "a table is defined otherwise")
                # Not as the server is by now: what others write from here on is written since.
                handed.store(host, info.name, state)
                return UndoneRows(transactions, rows, time.monotonic() - began)
    raise PreflightError("others write all the time", hint=_HINT)


def _moved(copy: Copy, state: HandedState, since: _Since) -> HandedState:
    folder = handed.binlog_folder(copy)
    if folder is None:
        raise PreflightError("the server writes no binlog", hint=_HINT)
    with open_binlog(folder / since.file, copy.keys) as file:
        digest, inode = digest_of(file, since.offset), os.fstat(file.fileno()).st_ino
    return state.model_copy(update={"file": since.file, "offset": since.offset, "digest": digest, "inode": inode})


def plan(settings: Settings, host: Host, info: CloneInfo) -> int:
    """Return how many changes of rows `undo_rows` would undo now; change nothing. The errors are those of it."""
    state = _state(settings, host, info)
    with session(info) as own:
        return len(_since(server_of(settings, info).copy, own, state).changes)


def _state(settings: Settings, host: Host, info: CloneInfo) -> HandedState:
    """Return how the clone was. PreflightError if it is not known, or if nothing of it can be undone by rows."""
    _refuse(_unsuitable(settings, info))
    state = handed.read(host, info)
    if state is None:
        raise PreflightError("it is not known how the server was when its user got it", hint=_HINT)
    is_masked_so = state.rules == masking_policy.rules_of_clone(settings, info)
    _refuse(None if is_masked_so else "the rules of masking are others now")
    _refuse(None if state.counters is not None else f"it has more than {planning.MOST_TABLES} tables")
    _refuse(
        None if state.locks_accounts else "the accounts of its source can log in, and keep changes out of the binlog"
    )
    return state


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise PreflightError(reason, hint=_HINT)


def _unsuitable(settings: Settings, info: CloneInfo) -> str | None:
    """Return why nothing of the clone can be undone by rows: its state, or that its users may hide changes."""
    if info.instance not in settings.instance:
        return f"instance {info.instance} is no longer configured"
    if info.phase is not CopyPhase.READY or info.pid is None:
        return "its server does not run"
    if not info.has_original:
        return "it has other data than it was created from"
    if info.follows is not None or info.part == SOURCE_PART:
        return "it replicates"
    if info.quota and 2 * info.own_bytes > info.quota:
        # Rows that were undone leave their space in the files.
        return f"it has {size(info.own_bytes)} of the {size(info.quota)} that it may have"
    return hides_changes(settings, info)


def hides_changes(settings: Settings, info: CloneInfo) -> str | None:
    """Return why the users of the clone may keep changes out of its binlog; None if they cannot."""
    if info.rights is not AccountRights.SCHEMAS or settings.clones.accounts != "lock":
        return "its users may keep changes out of the binlog"
    return None


def _end(own: Session) -> tuple[str, int]:
    status = binlog_status(own)
    position = status.get("Position", "")
    return status.get("File", ""), int(position) if position.isdecimal() else 0


def _since(copy: Copy, own: Session, state: HandedState) -> _Since:
    """Return what was written since the state, as far as the server says that its binlog goes."""
    _refuse(planning.log_objection(binlog_status(own)))
    routine = routine_of_another(own)
    _refuse(f"routine {routine} has the rights of another account" if routine is not None else None)
    _refuse("transactions of XA are prepared" if has_prepared_transactions(own) else None)
    _refuse(None if definitions(own) == state.definitions else "a table is defined otherwise")
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
    copy: Copy, state: HandedState, last: str, end: int
) -> Iterator[tuple[TransactionChanges, list[LoggedRow]]]:
    """Yield the transactions behind the end of the state, up to `end` in the newest file, with their rows.

    PreflightError if these binlogs are not those of then, with all that was written since: a user may have reset them.
    """
    folder, index = handed.binlog_folder(copy), binlog_paths(copy.variables, "log_bin")
    if folder is None or index is None:
        raise PreflightError("the server writes no binlog", hint=_HINT)
    names = [Path(entry).name for entry in index_entries(Path(copy.paths.translate(index[1])))]
    if state.file not in names or names[-1] != last:
        raise PreflightError(f"the index of binlogs does not lead from {state.file} to {last}", hint=_HINT)
    for name in names[names.index(state.file) :]:
        with open_binlog(folder / name, copy.keys) as file:
            _refuse("its binlog is encrypted" if key_of(file) is not None else None)
            _refuse(_other_file(file, name, state))
            tail = tail_of(file, name)
            if (tail.offset < end) if name == last else bool(tail.unfinished):
                raise PreflightError(f"the end of {name} cannot be read", hint=_HINT)
            for transaction in transaction_changes(file, name, state.offset if name == state.file else None):
                if name == last and transaction.end > end:
                    return
                yield transaction, row_changes(file, name, transaction)


def _other_file(file: BinaryIO, name: str, state: HandedState) -> str | None:
    """Return why this is not the binlog of the state, with more behind its end; None if it is, or is a later one."""
    if name != state.file:
        return None
    is_same = os.fstat(file.fileno()).st_ino == state.inode and file.seek(0, os.SEEK_END) >= state.offset
    return None if is_same and digest_of(file, state.offset) == state.digest else f"{name} is another file than it was"


class _Tables:
    """The definitions of the tables whose rows were changed, each proved to be one of which rows can be undone."""

    def __init__(self, own: Session) -> None:
        self._reader = TableShapes(own)
        self._known: dict[tuple[str, str], TableShape] = {}

    def change(self, row: LoggedRow) -> RowChange:
        """Return a change by the names of the columns. PreflightError if it cannot be undone."""
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
            raise PreflightError(f"a value of {shape.name} cannot be read: {error}", hint=_HINT) from error


def _undo(own: Session, changes: tuple[RowChange, ...]) -> None:
    if not changes:
        return
    for statement in (*undo.opening(changes), *undo.changing(changes)):
        own.query(statement)
    wrong = int(own.value(undo.COUNTED)) != len(changes)
    wrong = wrong or any(bool(own.query(one.question)) is one.is_absent for one in undo.undone(changes))
    if wrong:
        own.query("ROLLBACK")
        raise PreflightError("a row is not as its last change in the binlog left it", hint=_HINT)
    own.query("COMMIT")


def _set_counters_back(own: Session, state: HandedState) -> None:
    wanted, now = state.by_table, counters(own, planning.MOST_TABLES)
    if now is None or wanted is None or now.keys() != wanted.keys():
        raise PreflightError("there are other tables with counters than there were", hint=_HINT)
    moved = {table: value for table, value in wanted.items() if now[table] != value}
    if moved:
        set_back(own, moved)
        again = counters_of(own, moved)
        other = next((table for table, value in moved.items() if again.get(table) != value), None)
        if other is not None:
            # A server sets none back below the largest value of a row.
            _refuse(f"the counter of {'.'.join(other)} is {again.get(other)} again, and was {wanted[other]}")
