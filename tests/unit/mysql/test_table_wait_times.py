"""What readers and writers wait for is counted from when it begins until it is over, or until nobody waits any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql import table_wait_times
from zsnapdb.mysql.session import Row, Session
from zsnapdb.mysql.table_wait_times import TableWatch
from zsnapdb.planning.clone.migration_findings import TableAccess, TableWait
from zsnapdb.planning.sql_quoting import TableName

ITEMS = TableName("shop", "items")
SECONDS = 20.0
"""How long a test waits for what happens at once."""


class FakeServer:
    """Answers each question; `of_writers` is called for each one that locks a row."""

    def __init__(self, key: Sequence[Row], of_writers: Callable[[], None]) -> None:
        self.asked: set[str] = set()
        self._key, self._of_writers = key, of_writers

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        return

    def query(self, sql: str, _parameters: Sequence[object] = ()) -> list[Row]:
        if "statistics" in sql:
            return [*self._key]
        self.asked.add(sql)
        if "FOR UPDATE" in sql:
            self._of_writers()
        return []


@pytest.fixture
def watching() -> Iterator[Callable[[FakeServer], TableWatch]]:
    started: list[TableWatch] = []

    def start(server: FakeServer) -> TableWatch:
        started.append(TableWatch.start(lambda: cast("Session", server), [ITEMS]))
        return started[-1]

    yield start
    for watch in started:
        watch.stop.set()


def write_of(watch: TableWatch) -> TableWait:
    (found,) = (one for one in watch.end().tables if one.access is TableAccess.WRITE)
    return found


KEY = [("id", None, "A"), ("at", None, "A")]


def test_what_failed_before_the_migration_is_not_counted_as_its_effect(
    watching: Callable[[FakeServer], TableWatch],
) -> None:
    fails, failed, answered = threading.Event(), threading.Event(), threading.Semaphore(0)
    fails.set()

    def of_writers() -> None:
        if fails.is_set():
            failed.set()
            raise ServerError("the table is being repaired")
        answered.release()

    watch = watching(FakeServer(KEY, of_writers))
    assert failed.wait(SECONDS)
    fails.clear()
    # When it is asked a second time, the first answer is counted.
    assert all(answered.acquire(timeout=SECONDS) for _ in range(2))
    watch.begin()
    assert all(answered.acquire(timeout=SECONDS) for _ in range(2))
    seen = write_of(watch)
    assert (seen.failed, seen.error) == (0, "")
    assert seen.before > 0 < seen.asked


def test_who_still_waits_when_the_watch_ends_has_waited_and_failed(
    watching: Callable[[FakeServer], TableWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration can leave locks: of a prepared transaction, or of a process in the background."""
    monkeypatch.setattr(table_wait_times, "_ENDING_SECONDS", 0.2)
    waits, ends = threading.Event(), threading.Event()

    def of_writers() -> None:
        waits.set()
        ends.wait(SECONDS)

    watch = watching(FakeServer(KEY, of_writers))
    assert waits.wait(SECONDS)
    watch.begin()
    seen = write_of(watch)
    ends.set()
    assert seen.failed == 1
    assert seen.longest >= 0.2
    assert "not answered" in seen.error


@pytest.mark.parametrize(
    ("key", "ordered"),
    [
        (KEY, True),
        ([("id", None, "D")], True),
        ([("name", 10, "A")], False),
        ([("id", None, "A"), ("at", None, "D")], False),
        ([("id", None, None)], False),
        ([], False),
    ],
    ids=("plain", "descending", "prefix", "both directions", "hash", "no key"),
)
def test_a_writer_sorts_by_the_primary_key_only_where_that_locks_one_row(
    watching: Callable[[FakeServer], TableWatch], key: list[Row], ordered: bool
) -> None:
    asked = threading.Semaphore(0)
    server = FakeServer(key, lambda: asked.release())
    watch = watching(server)
    assert all(asked.acquire(timeout=SECONDS) for _ in range(2))
    watch.end()
    writes = {sql for sql in server.asked if "FOR UPDATE" in sql}
    assert all(("ORDER BY" in sql) is ordered for sql in writes)
    assert len(writes) == (2 if ordered else 1)
