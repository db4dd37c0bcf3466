"""Measures by repeated queries how long readers and writers of tables wait.

A reader selects one row. A writer locks one row, alternately the first and the last by primary key. The query of a
writer acquires the locks of a writing statement (metadata lock SHARED_WRITE; refman 8.4, "Locking Reads") and changes
nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.schema import tables
from zsnapdb.mysql.session import Session
from zsnapdb.planning.clone.migration_findings import TableAccess, TableWait
from zsnapdb.planning.sql_quoting import TableName, quoted

_LONGEST_WAIT = 86400
_PAUSE_OF_ONE = 0.0025
_LONGEST_PAUSE = 0.02
"""Maximum pause between queries.

The pause grows with the number of queries to limit the load, but shorter waits may go undetected.
"""
_ENDING_SECONDS = 60.0
_WITHOUT_TABLE = ("DO 1",)
"""A statement that uses no table. If this statement waits, the server or the host causes the wait."""


@dataclass(frozen=True)
class MeasuredWaits:
    """The waits of table readers and writers, and the longest wait of a statement that uses no table, in seconds."""

    tables: tuple[TableWait, ...]
    without_table: float


class _Watcher:
    """Repeats a query in a separate thread."""

    def __init__(self, session: Session, questions: Sequence[str]) -> None:
        self._session = session
        self._questions: Iterator[str] = itertools.cycle(questions)
        self._lock = threading.Lock()
        self._since: float | None = None
        self._longest = self._before = 0.0
        self._asked = self._failed = 0
        self._error = ""

    def ask_until(self, stop: threading.Event, pause: float) -> None:
        """Repeat the query until the stop is requested. If the last query failed, query once more."""
        while not stop.wait(pause):
            self._ask()
        if self._since is not None:
            self._ask()

    def _ask(self) -> None:
        with self._lock:
            # After a failed query, the wait is not over until a query succeeds.
            self._since = self._since or time.monotonic()
        error = ""
        try:
            self._session.query(next(self._questions))
        except ServerError as failed:
            error = failed.message
        self._count(error)

    def _count(self, error: str) -> None:
        with self._lock:
            now = time.monotonic()
            self._asked += 1
            self._failed, self._error = self._failed + bool(error), error or self._error
            self._longest = max(self._longest, now - (self._since or now))
            self._since = self._since if error else None

    def begin(self) -> None:
        """Reset the counters and the start time of a current wait, because the migration starts now."""
        with self._lock:
            self._before, self._longest = self._longest, 0.0
            self._asked, self._failed, self._error = 0, 0, ""
            self._since = None if self._since is None else time.monotonic()

    def give_up(self) -> None:
        """Count a query that has no answer yet as failed."""
        if self._since is not None:
            self._count("it was not answered after the migration either")

    def close(self) -> None:
        """Close the session. This also ends a query without an answer."""
        self._session.close()

    @property
    def longest(self) -> float:
        """The longest wait since `begin`, in seconds."""
        return self._longest

    def seen(self, table: TableName, access: TableAccess) -> TableWait:
        """Return the wait times since `begin` for this kind of access to the table."""
        return TableWait(table, access, self._longest, self._before, self._asked, self._failed, self._error)


@dataclass(frozen=True)
class TableWatch:
    """The running watchers. Each kind of access to each table has a watcher, and one more watcher uses no table."""

    uses: Sequence[tuple[TableName, TableAccess]]
    watchers: Sequence[_Watcher]
    threads: Sequence[threading.Thread]
    stop: threading.Event

    @classmethod
    def start(cls, open_session: Callable[[], Session], names: Sequence[TableName]) -> TableWatch:
        """Start a reader and a writer for each table, and one watcher without a table. Each has its own session."""
        uses = [(name, access) for name in names for access in TableAccess]
        with open_session() as session:
            questions = [*(_questions(session, *use) for use in uses), _WITHOUT_TABLE]
        watchers = [_Watcher(_prepared(open_session()), each) for each in questions]
        stop, pause = threading.Event(), min(_LONGEST_PAUSE, _PAUSE_OF_ONE * len(watchers))
        threads = [threading.Thread(target=one.ask_until, args=(stop, pause), daemon=True) for one in watchers]
        for thread in threads:
            thread.start()
        return cls(uses, watchers, threads, stop)

    def begin(self) -> None:
        """Reset the counters, because all earlier measurements preceded the migration."""
        for watcher in self.watchers:
            watcher.begin()

    def end(self) -> MeasuredWaits:
        """Stop the watchers, and return the measurements since `begin`.

        If a query has no answer after 60 s, it probably waits for a lock that the migration left behind, and is treated
        as failed.
        """
        self.stop.set()
        until = time.monotonic() + _ENDING_SECONDS
        for watcher, thread in zip(self.watchers, self.threads, strict=True):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                watcher.give_up()
        for watcher in self.watchers:
            watcher.close()
        *of_tables, alone = self.watchers
        seen = tuple(watcher.seen(*use) for watcher, use in zip(of_tables, self.uses, strict=True))
        return MeasuredWaits(seen, alone.longest)


def _prepared(session: Session) -> Session:
    """Raise the session's lock timeouts, so that no query fails before its wait is measured."""
    session.query(f"SET SESSION lock_wait_timeout = {_LONGEST_WAIT}, innodb_lock_wait_timeout = {_LONGEST_WAIT}")
    return session


def _questions(session: Session, name: TableName, access: TableAccess) -> tuple[str, ...]:
    table = quoted(name.schema, str(name.table))
    if access is TableAccess.READ:
        return (f"SELECT 1 FROM {table} LIMIT 1",)
    key = tables.ordered_key(session, name.schema, str(name.table))
    if not key:
        # Sorting would lock every row.
        return (f"SELECT 1 FROM {table} LIMIT 1 FOR UPDATE",)
    orders = (", ".join(f"{quoted(one)} {way}" for one in key) for way in ("ASC", "DESC"))
    return tuple(f"SELECT 1 FROM {table} ORDER BY {order} LIMIT 1 FOR UPDATE" for order in orders)
