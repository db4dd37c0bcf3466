"""A transaction is found in the server's binlogs with its rows, or it is said why it cannot be undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID
from tests.unit.support.row_events import (
    DELETE,
    PARTIAL,
    TABLE_MAP,
    UPDATE,
    WRITE,
    packed_transaction,
    rows,
    table,
    transaction,
    value,
)
from zsnapdb.errors import NotThere, PreflightError
from zsnapdb.jobs.binlog.files import BinlogSource, LocalFiles
from zsnapdb.jobs.binlog.undo import LoggedTransaction, find_transaction
from zsnapdb.model import Flavour

MAP = (TABLE_MAP, table())


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path, is_encrypted=False)


def found(server: Server, number: int) -> LoggedTransaction:
    server.executed = number
    server.write()
    index = server.folder / "binlog.index"
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, index, server.folder, server.folder)
    return find_transaction(LocalFiles(source), f"{UUID}:{number}")


@pytest.mark.parametrize("write", [transaction, packed_transaction])
def test_the_rows_of_a_transaction_are_read_before_and_after_the_change(server: Server, write: object) -> None:
    assert callable(write)
    write(
        server.newest,
        1,
        MAP,
        (WRITE, rows(value(1, b"one"), kind=WRITE)),
        MAP,
        (UPDATE, rows(value(1, b"one") + value(1, None), kind=UPDATE)),
        MAP,
        (DELETE, rows(value(1, None) + value(2, b"two"), kind=DELETE)),
    )
    one, two = b"\1\0\0\0", b"\2\0\0\0"
    assert [(row.before, row.after) for row in found(server, 1).rows] == [
        (None, {0: one, 1: b"one"}),
        ({0: one, 1: b"one"}, {0: one, 1: None}),
        ({0: one, 1: None}, None),
        ({0: two, 1: b"two"}, None),
    ]


def test_a_transaction_that_the_binlogs_do_not_have_is_not_there(server: Server) -> None:
    server.write()
    with pytest.raises(NotThere):
        found(server, 7)


def test_a_transaction_with_a_statement_is_refused(server: Server) -> None:
    server.newest.gtid(1, committed=1_000_000).query(b"DROP TABLE t")
    with pytest.raises(PreflightError, match="statements whose rows are not in the binlog"):
        found(server, 1)


def test_rows_with_differences_of_documents_are_refused(server: Server) -> None:
    document = rows(value(1, b"x") + b"\0" + value(1, b"y"), kind=PARTIAL)
    transaction(server.newest, 1, MAP, (PARTIAL, document))
    with pytest.raises(PreflightError, match="cannot be read"):
        found(server, 1)


def test_later_statements_are_returned(server: Server) -> None:
    transaction(server.newest, 1, MAP, (WRITE, rows(value(1, b"one"))))
    server.newest.gtid(2, committed=2_000_000).query(b"ALTER TABLE t ADD x INT")
    server.executed = 2
    server.write()
    later = found(server, 1).later
    assert [entry.statements[0].text for entry in later] == ["ALTER TABLE t ADD x INT"]
