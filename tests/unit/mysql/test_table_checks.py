"""The check of many tables: small tables with one thread, large tables with the threads of the server."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.mysql.schema.tables import TableChecker
from zsnapdb.mysql.session import Row, Session
from zsnapdb.planning.schema_content import CatalogueTable, TableType

LARGE = 64 << 20


class Server:
    """A session that notes with how many threads each table was checked. None: the server has no such variable."""

    def __init__(self, threads: int | None) -> None:
        self.threads, self.settings = threads, 0
        self.checked: list[int | None] = []

    def query(self, sql: str) -> list[Row]:
        if sql.startswith("SHOW"):
            return [] if self.threads is None else [("innodb_parallel_read_threads", str(self.threads))]
        if sql.startswith("SET SESSION innodb_parallel_read_threads = "):
            assert self.threads is not None
            self.threads, self.settings = int(sql.rpartition(" ")[2]), self.settings + 1
            return []
        if sql.startswith("CHECK TABLE"):
            self.checked.append(self.threads)
            return [("a.t", "check", "status", "OK")]
        return [(1,)]


def table(size: int, kind: TableType = TableType.BASE) -> CatalogueTable:
    return CatalogueTable("a", "t", kind, "InnoDB", "", size)


@given(st.lists(st.integers(0, 2 * LARGE)), st.integers(1, 256))
def test_small_table_is_checked_by_one_thread_and_a_large_one_as_the_server_does(
    sizes: list[int], threads: int
) -> None:
    server = Server(threads)
    checker = TableChecker(cast(Session, server))
    for size in sizes:
        assert checker.check(table(size))[0][3] == "OK"
    assert server.checked == [1 if size < LARGE else threads for size in sizes]
    kinds = [size < LARGE for size in (LARGE, *sizes)]
    turns = sum(one != other for one, other in pairwise(kinds))
    assert server.settings == (turns if threads > 1 else 0)


def test_server_without_such_threads_is_asked_for_none() -> None:
    server = Server(None)
    checker = TableChecker(cast(Session, server))
    for size in (0, 2 * LARGE):
        checker.check(table(size))
    assert server.checked == [None, None]


def test_sequence_is_read() -> None:
    server = Server(4)
    assert TableChecker(cast(Session, server)).check(table(0, TableType.SEQUENCE))[0][2:] == ("status", "OK")
    assert (server.checked, server.settings) == ([], 0)
