"""A transaction is found in the server's binlogs with its rows, or it is said why it cannot be undone."""

from __future__ import annotations

import struct
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
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles
from zsnapdb.jobs.binlog.undo import LoggedTransaction, find_transaction
from zsnapdb.mysql.binlog.event_bytes import EventBytes
from zsnapdb.mysql.binlog.logged_changes import TEXTS, TEXTS_AND_GEOMETRY, table_map, table_metadata

MAP = (TABLE_MAP, table())


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path, is_encrypted=False)


def instance(server: Server) -> Instance:
    return Instance(
        "main",
        InstanceSettings(socket=Path("/s"), repository="r"),
        RepositorySettings(url=f"file://{server.folder}/store"),
    )


def found(server: Server, number: int) -> LoggedTransaction:
    server.executed = max(server.executed, number)
    server.write()
    index = server.folder / "binlog.index"
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, index, server.folder, server.folder)
    return find_transaction(instance(server), LocalFiles(source), f"{UUID}:{number}")


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
    server.look()
    with pytest.raises(NotFound):
        found(server, 7)


def test_a_transaction_that_the_server_has_removed_is_read_from_the_archive(server: Server) -> None:
    transaction(server.newest, 1, MAP, (WRITE, rows(value(1, b"one"))))
    server.executed = 1
    server.rotate()
    server.newest.gtid(2, committed=2_000_000).query(b"ALTER TABLE t ADD x INT")
    server.executed = 2
    server.look()
    server.remove("binlog.000001")
    logged = found(server, 1)
    assert (len(logged.rows), logged.began) == (1, 1)


def test_a_transaction_with_a_statement_is_refused(server: Server) -> None:
    server.newest.gtid(1, committed=1_000_000).query(b"DROP TABLE t")
    with pytest.raises(PreflightError, match="statements whose rows are not in the binlog"):
        found(server, 1)


def test_a_document_of_which_the_binlog_has_the_difference_is_left_out(server: Server) -> None:
    def document(text: bytes) -> bytes:
        return b"\0" + struct.pack("<i", 1) + struct.pack("<I", len(text)) + text

    plain, different = document(b"x") + b"\0" + document(b"y"), document(b"x") + b"\1\1" + document(b"d")
    changed = rows(plain + different, kind=PARTIAL)
    transaction(server.newest, 1, (TABLE_MAP, table(types=bytes([3, 245]), details=b"\4")), (PARTIAL, changed))
    one = b"\1\0\0\0"
    assert [(row.before, row.after) for row in found(server, 1).rows] == [
        ({0: one, 1: b"x"}, {0: one, 1: b"y"}),
        ({0: one, 1: b"x"}, {0: one}),
    ]


def test_what_a_table_map_says_of_its_columns_is_read(server: Server) -> None:
    fields = b"\1\1\x80" + b"\2\1\x2d" + b"\4\x08" + b"\2id\4na`m" + b"\x0c\1\xc0"
    for number, write in enumerate((transaction, packed_transaction), 1):
        write(server.newest, number, (TABLE_MAP, table() + fields), (WRITE, rows(value(1, b"one"))))
        first, second = found(server, number).rows[0].columns
        assert (first.name, first.is_unsigned, first.collation, first.size) == ("id", True, None, 0)
        assert (second.name, second.is_unsigned, second.collation, second.size) == ("na`m", None, 45, 200)


def test_a_collation_that_is_not_the_default_of_a_table_map_is_that_of_its_column(server: Server) -> None:
    types, details = bytes([15, 3, 15, 254, 254]), b"\xc8\0\xc8\0\xf7\1\xf8\1"
    fields = b"\2\3\x2d\1\x08" + b"\x0a\3\x2d\0\x21" + b"\5\4\1\2xy" + b"\6\3\1\1x"
    body = table(types=types, details=details).removesuffix(b"\xff") + b"\x1f" + fields
    row = b"\0" + b"\1a" + b"\1\0\0\0" + b"\1b" + b"\1" + b"\1"
    transaction(server.newest, 1, (TABLE_MAP, body), (WRITE, rows(row, width=5)))
    columns = found(server, 1).rows[0].columns
    assert [column.collation for column in columns] == [45, None, 8, 33, 45]
    assert [column.members for column in columns] == [None, None, None, (b"x",), (b"xy",)]
    assert [column.numbered for column in columns] == [0, 0, 0, 247, 248]


@pytest.mark.parametrize(
    ("texts", "collations", "expected"),
    [
        (TEXTS, b"\3\1\x2d", [None, None, None, 45, None]),
        (TEXTS_AND_GEOMETRY, b"\3\2\x3f\x2d", [None, None, 63, 45, None]),
    ],
)
def test_year_has_a_sign_in_a_table_map_and_geometry_of_mariadb_a_collation(
    texts: frozenset[int], collations: bytes, expected: list[int | None]
) -> None:
    body = table(types=bytes([3, 13, 255, 15, 8]), details=b"\4\xc8\0").removesuffix(b"\xff") + b"\x1f"
    reading = EventBytes([body + b"\1\1\x60" + collations])
    columns = table_metadata(table_map(reading), reading, texts)
    assert [column.is_unsigned for column in columns] == [False, True, None, None, True]
    assert [column.collation for column in columns] == expected
