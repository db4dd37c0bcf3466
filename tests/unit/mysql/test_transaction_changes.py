"""What a transaction changed is read from its events: tables, kinds, exact rows.

Nothing that others write breaks the reader.
"""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_file import PAYLOAD, QUERY, UUID, File
from tests.unit.support.row_events import (
    COMPRESSED_WRITE_V1,
    DELETE,
    DELETE_V1,
    JSON,
    LONG,
    PARTIAL,
    TABLE_MAP,
    UPDATE,
    UPDATE_V1,
    WRITE,
    WRITE_V1,
    compressed,
    every_form,
    packed_transaction,
    rows,
    table,
    transaction,
    value,
)
from zsnapdb.base.errors import DamagedError
from zsnapdb.mysql.binlog.logged_changes import first_word
from zsnapdb.mysql.binlog.transaction_changes import transaction_changes
from zsnapdb.planning.binlog.changes import ChangeKind, TableChanges, TransactionChanges

THREE = value(1, b"one") + value(2, None) + value(3, b"x" * 50)
MAP = (TABLE_MAP, table())


def of(file: File) -> list[TransactionChanges]:
    return list(transaction_changes(io.BytesIO(bytes(file.data)), "binlog.000001"))


def tables(file: File) -> list[tuple[TableChanges, ...]]:
    return [changes.tables for changes in of(file)]


@pytest.mark.parametrize(
    ("kind", "data", "counts"),
    [
        (WRITE, THREE, (3, 0, 0)),
        (WRITE_V1, THREE, (3, 0, 0)),
        (UPDATE, THREE + value(4, None), (0, 2, 0)),
        (UPDATE_V1, THREE + value(4, None), (0, 2, 0)),
        (DELETE, THREE, (0, 0, 3)),
        (DELETE_V1, THREE, (0, 0, 3)),
    ],
)
@pytest.mark.parametrize("form", ["plain", "zstd", "stored"])
def test_the_rows_of_each_kind_of_event_are_counted(
    kind: int, data: bytes, counts: tuple[int, int, int], form: str
) -> None:
    events = (MAP, (kind, rows(data, kind=kind)))
    file = File().previous(5)
    if form == "plain":
        transaction(file, 6, *events)
    else:
        packed_transaction(file, 6, *events, plain=form == "stored")
    (changes,) = of(file)
    assert changes.gtid == f"{UUID}:6"
    assert changes.tables == (TableChanges("app", "t", *counts),)
    assert (changes.rows, changes.are_rows_known, changes.unknown) == (sum(counts), True, ())
    assert changes.is_compressed == (form != "plain")


def test_compressed_rows_of_mariadb_are_counted() -> None:
    file = File(version=b"11.8.8-MariaDB-log").gtid_list((0, 1, 40)).mariadb(41)
    body = rows(b"", kind=WRITE_V1) + compressed(THREE)
    file.add(TABLE_MAP, table()).add(COMPRESSED_WRITE_V1, body).add(16, bytes(8))
    (changes,) = of(file)
    assert (changes.gtid, changes.tables, changes.is_compressed) == ("0-1-41", (TableChanges("app", "t", 3),), True)


def test_a_partial_update_of_a_document_is_counted() -> None:
    details = b"\x04"
    before = b"\0" + struct.pack("<i", 1) + struct.pack("<I", 300) + bytes(300)
    after = b"\x01\x01" + b"\0" + struct.pack("<i", 1) + struct.pack("<I", 7) + bytes(7)
    file = transaction(
        File().previous(5),
        6,
        (TABLE_MAP, table(types=bytes([LONG, JSON]), details=details)),
        (PARTIAL, rows((before + after) * 2, kind=PARTIAL)),
    )
    assert tables(file) == [(TableChanges("app", "t", 0, 2),)]


def test_an_event_longer_than_the_memory_of_the_reader_is_counted_row_by_row() -> None:
    long = b"\0" + struct.pack("<i", 1) + struct.pack("<I", 3 << 20) + bytes(3 << 20)
    types, details = bytes([LONG, 252]), b"\x04"
    one = (TABLE_MAP, table(types=types, details=details))
    for write in (transaction, packed_transaction):
        file = write(File().previous(5), 6, one, (WRITE, rows(long * 3)))
        data = io.BytesIO(bytes(file.data))
        tracemalloc.start()
        (changes,) = transaction_changes(data, "b")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert changes.tables == (TableChanges("app", "t", 3),)
        assert peak < 6 << 20


def test_a_transaction_over_several_tables_lists_each() -> None:
    file = transaction(
        File().previous(5),
        6,
        (TABLE_MAP, table(1, name=b"one")),
        (TABLE_MAP, table(2, name=b"two")),
        (WRITE, rows(THREE, number=1, ends=False)),
        (DELETE, rows(THREE, kind=DELETE, number=2)),
        (TABLE_MAP, table(1, name=b"one")),
        (DELETE, rows(value(1, None), kind=DELETE, number=1)),
    )
    assert tables(file) == [(TableChanges("app", "one", 3, 0, 1), TableChanges("app", "two", 0, 0, 3))]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"DELETE FROM t", ChangeKind.DELETE),
        (b"/* a comment */ -- another\n update t SET a = 1", ChangeKind.UPDATE),
        (b"replace into t values (1)", ChangeKind.INSERT),
        (b"CALL p()", ChangeKind.OTHER),
        (b"WITH a AS (SELECT 1) DELETE FROM t", ChangeKind.OTHER),
    ],
)
def test_of_a_logged_statement_it_is_said_that_its_rows_are_not_known(text: bytes, kind: ChangeKind) -> None:
    file = File().previous(5).gtid(6).query(b"BEGIN").query(text).add(16, bytes(8))
    (changes,) = of(file)
    assert (changes.kinds, changes.rows, changes.are_rows_known) == ((kind,), 0, False)
    assert changes.unknown[0].startswith("statement format")


def test_ddl_is_a_kind_and_control_statements_are_none() -> None:
    file = File().previous(5).gtid(6).query(b"/*!40000 DROP TABLE t */").gtid(7).query(b"BEGIN").query(b"SAVEPOINT s")
    file.query(b"COMMIT")
    one, two = of(file)
    assert (one.kinds, one.are_rows_known, one.statements[0].schema) == ((ChangeKind.DDL,), True, "app")
    assert (two.kinds, two.statements) == ((), ())


def test_a_column_of_an_unknown_form_makes_the_rows_unknown_and_no_error() -> None:
    file = transaction(
        File().previous(5),
        6,
        (TABLE_MAP, table(types=bytes([LONG, 200]))),
        (WRITE, rows(THREE)),
        MAP,
        (WRITE, rows(b"x")),
    )
    (changes,) = of(file)
    assert changes.tables == (TableChanges("app", "t", is_counted=False),)
    assert not changes.are_rows_known
    assert "app.t could not be counted" in changes.unknown[0]


def test_the_statement_beside_the_rows_is_kept_without_control_characters() -> None:
    file = transaction(
        File().previous(5), 6, (29, b"\x10DELETE FROM t\x1b[2J"), MAP, (DELETE, rows(THREE, kind=DELETE))
    )
    assert [changes.annotation for changes in of(file)] == ["DELETE FROM t?[2J"]


def test_the_begin_is_the_time_of_the_first_statement() -> None:
    file = File(when=50).previous(5)
    file.when = 100
    file.gtid(6, committed=200_000_000).query(b"BEGIN")
    file.when = 90
    file.add(*MAP).add(WRITE, rows(THREE))
    file.when = 200
    file.add(16, bytes(8))
    assert [(changes.began, changes.committed) for changes in of(file)] == [(90_000_000, 200_000_000)]


@pytest.mark.parametrize(
    "events",
    [
        ((WRITE, rows(THREE)),),
        ((TABLE_MAP, table()[:20]),),
        ((TABLE_MAP, table(types=b"\x03" * 5000)),),
        ((QUERY, b"\x01"),),
        ((PAYLOAD, b"\x02\x01\x00\x00" + b"no zstd frame"),),
        ((PAYLOAD, b"\x02\x01\x07\x00" + b"unknown"),),
        ((165, struct.pack("<IIBHH", 1, 0, 3, 0, 0) + b"app\0" + b"\x81\x05no zlib"),),
    ],
)
def test_a_malformed_event_is_an_error_that_names_its_place(events: tuple[tuple[int, bytes], ...]) -> None:
    file = File().previous(5).gtid(6).mark("place")
    for kind, body in events:
        file.add(kind, body)
    with pytest.raises(DamagedError, match=rf"binlog.000001: the event at {file.marks['place']} is malformed"):
        of(file)


def test_what_a_transaction_names_is_kept_up_to_a_limit() -> None:
    file = File().previous(5).gtid(6).query(b"BEGIN")
    for number in range(1, 1201):
        file.add(TABLE_MAP, table(number, name=b"t%d" % number)).add(WRITE, rows(THREE, number=number))
    for _ in range(150):
        file.query(b"UPDATE t SET a = 1 /* " + b"x" * 5000)
    (changes,) = of(file.add(16, bytes(8)))
    assert (len(changes.tables), changes.rows, changes.are_rows_known) == (1000, 3600, False)
    assert (len(changes.statements), changes.other_statements) == (100, 50)
    assert all(len(statement.text) <= 4096 and statement.is_cut for statement in changes.statements)


@given(
    st.binary(max_size=200), st.sampled_from([TABLE_MAP, WRITE, UPDATE, PARTIAL, 166, 171, QUERY, 165, 18, 29, 160, 40])
)
def test_any_body_of_an_event_is_read_or_refused(body: bytes, kind: int) -> None:
    file = File().previous(5).gtid(6).query(b"BEGIN").add(*MAP).add(kind, body).add(16, bytes(8))
    with contextlib.suppress(DamagedError):
        of(file)


@given(st.text(max_size=60))
def test_any_text_has_a_first_word_or_none(text: str) -> None:
    assert first_word(text).isalpha() or first_word(text) == ""


def test_the_examples_of_the_fuzzing_test_are_read_whole() -> None:
    changes = of(every_form())
    assert [one.rows for one in changes] == [2, 2, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 1, 1, 2]
    assert [one.are_rows_known for one in changes] == [True] * 14 + [False]
