"""Watches how long readers and writers of tables wait, by asking them again and again.

A reader selects one row. A writer locks one row, the first by the primary key, then the last, and so on: that takes the
locks of a statement that writes (metadata lock SHARED_WRITE; refman 8.4, "Locking Reads"), and changes nothing.
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
from zsnapdb.planning.clone.migration import TableAccess, WaitOfTable
from zsnapdb.planning.sql_text import TableName, quoted

_LONGEST_WAIT = 86400
_PAUSE_OF_ONE = 0.0025
_LONGEST_PAUSE = 0.02
"""The pause between two questions grows with their number, so that they are no load, and bounds what is not seen."""
_ENDING_SECONDS = 60.0
_WITHOUT_TABLE = ("DO 1",)
"""A statement that needs nothing but the server, and so waits as long as the host lets everybody wait."""


@dataclass(frozen=True)
class WatchedWaits:
    """The waits of readers and writers of tables, and the longest of a statement that needs no table (seconds)."""

    tables: tuple[WaitOfTable, ...]
    without_table: float


class _Watcher:
    """Asks questions again and again in a thread of its own."""

    def __init__(self, session: Session, questions: Sequence[str]) -> None:
        self._session = session
        self._questions: Iterator[str] = itertools.cycle(questions)
        self._lock = threading.Lock()
        self._since: float | None = None
        self._longest = self._before = 0.0
        self._asked = self._failed = 0
        self._error = ""

    def ask_until(self, stop: threading.Event, pause: float) -> None:
        """Ask until the stop is requested, and once more if the last question failed."""
        while not stop.wait(pause):
            self._ask()
        if self._since is not None:
            self._ask()

    def _ask(self) -> None:
        with self._lock:
            # One that failed goes on as a wait until one succeeds.
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
        """What was seen until now was before the migration, also of a wait that goes on."""
        with self._lock:
            self._before, self._longest = self._longest, 0.0
            self._asked, self._failed, self._error = 0, 0, ""
            self._since = None if self._since is None else time.monotonic()

    def give_up(self) -> None:
        """Count the question that nobody has answered yet as one that failed."""
        if self._since is not None:
            self._count("it was not answered after the migration either")

    def close(self) -> None:
        """Close the session. A question that is not answered ends with it."""
        self._session.close()

    @property
    def longest(self) -> float:
        """The longest wait since `begin`, in seconds."""
        return self._longest

    def seen(self, table: TableName, access: TableAccess) -> WaitOfTable:
        """Return what was seen since `begin`, as that of this use of a table."""
        return WaitOfTable(table, access, self._longest, self._before, self._asked, self._failed, self._error)


@dataclass(frozen=True)
class TableWatch:
    """Watchers that run: of the uses of tables in their order, and last that of the server alone."""

    uses: Sequence[tuple[TableName, TableAccess]]
    watchers: Sequence[_Watcher]
    threads: Sequence[threading.Thread]
    stop: threading.Event

    @classmethod
    def start(cls, open_session: Callable[[], Session], names: Sequence[TableName]) -> TableWatch:
        """Start a reader and a writer of each table, and one that asks for no table, each with a session of its own."""
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
        """What was seen until now was before the migration."""
        for watcher in self.watchers:
            watcher.begin()

    def end(self) -> WatchedWaits:
        """Stop, and return what was seen since `begin`.

        Who waits longer than a minute after that, waits for what the migration left behind.
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
        return WatchedWaits(seen, alone.longest)


def _prepared(session: Session) -> Session:
    """Let no question give up: how long it waits is what is asked."""
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
