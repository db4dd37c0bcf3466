"""A text that a client would read in another way than the server is found, wherever a binlog holds it."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_file import QUERY, File
from tests.unit.support.row_events import (
    TABLE_MAP,
    WRITE,
    compressed,
    packed_transaction,
    rows,
    table,
    transaction,
    value,
)
from zsnapdb.base.errors import PreflightError, ZsnapdbError
from zsnapdb.mysql.binlog.ambiguous_text import AmbiguousText, ambiguous_text, refuse_ambiguous_text

SECOND = b"INSERT INTO t VALUES (1) /* /*!*/;\nLOAD DATA LOCAL INFILE '/etc/shadow' INTO TABLE t /*!*/; */"


def found(file: File) -> AmbiguousText | None:
    return ambiguous_text(io.BytesIO(bytes(file.data)), "binlog.000001")


def text(statement: bytes, schema: bytes = b"app") -> bytes:
    return struct.pack("<IIBHH", 1, 0, len(schema), 0, 0) + schema + b"\0" + statement


def test_a_statement_with_the_delimiter_is_found_at_its_offset() -> None:
    file = File().previous(5).gtid(6).query(b"BEGIN").mark("bad").query(SECOND).add(16, bytes(8))
    bad = found(file)
    assert bad is not None
    assert bad.offset == file.marks["bad"]
    assert "/*!*/" in bad.reason


def test_a_statement_with_the_delimiter_is_found_in_a_compressed_transaction() -> None:
    assert found(packed_transaction(File().previous(5), 6, (QUERY, text(SECOND)))) is not None
    assert found(packed_transaction(File().previous(5), 6, (QUERY, text(SECOND)), plain=True)) is not None
    file = File(version=b"11.8.6-MariaDB").mariadb(6)
    assert found(file.add(165, text(compressed(SECOND))).add(16, bytes(8))) is not None


@pytest.mark.parametrize("kind", [14, 18])
def test_a_variable_or_a_load_of_a_file_with_the_delimiter_is_found(kind: int) -> None:
    assert found(File().previous(5).gtid(6).query(b"BEGIN").add(kind, bytes(40) + SECOND).add(16, bytes(8))) is not None


@pytest.mark.parametrize("name", [b"x\nDROP DATABASE shop/*!*/;", b"x\ry", b"x/*!*/;"])
def test_a_table_whose_name_ends_a_line_is_found(name: bytes) -> None:
    for made in (table(name=name), table(schema=name)):
        assert found(transaction(File().previous(5), 6, (TABLE_MAP, made))) is not None
        assert found(packed_transaction(File().previous(5), 6, (TABLE_MAP, made))) is not None


def test_a_default_schema_whose_name_ends_a_line_is_found() -> None:
    """A client takes `USE` with the first line of the name for a statement, and the second line for another one."""
    bad = text(b"INSERT INTO t VALUES (1)", b"x\nDROP DATABASE shop")
    assert found(File().previous(5).gtid(6).query(b"BEGIN").add(QUERY, bad).add(16, bytes(8))) is not None
    assert found(packed_transaction(File().previous(5), 6, (QUERY, bad))) is not None
    mariadb = File(version=b"11.8.6-MariaDB").mariadb(6)
    bad = text(compressed(b"INSERT INTO t VALUES (1)"), b"x\nDROP DATABASE shop")
    assert found(mariadb.add(165, bad).add(16, bytes(8))) is not None


def test_a_next_binlog_whose_name_ends_a_line_is_found() -> None:
    assert found(File().previous(5).add(4, struct.pack("<Q", 4) + b"binlog.2\nDROP TABLE t")) is not None


def test_the_delimiter_in_the_bytes_of_a_row_is_no_text() -> None:
    written = (WRITE, rows(value(1, b"/*!*/;\nDROP TABLE t")))
    assert found(transaction(File().previous(5), 6, (TABLE_MAP, table()), written)) is None
    assert found(packed_transaction(File().previous(5), 6, (TABLE_MAP, table()), written)) is None


def test_statements_of_several_lines_and_with_comments_are_replayed() -> None:
    for statement in (
        b"CREATE PROCEDURE p()\nBEGIN\n/*!80000 SELECT 1 */;\nEND",
        b"INSERT INTO t VALUES ('/*', '*/;')",
    ):
        assert found(File().previous(5).gtid(6).query(b"BEGIN").query(statement).add(16, bytes(8))) is None


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4, (1 << 18) - 45, (1 << 18) - 30, (1 << 18) - 28, (1 << 20) + 3])
def test_the_delimiter_is_found_wherever_the_reader_cuts_a_long_statement(before: int) -> None:
    assert found(File().previous(5).gtid(6).query(b"BEGIN").query(b"#" * before + b"/*!*/;")) is not None


def test_a_replay_by_a_client_is_refused_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "relay.000001"
    path.write_bytes(bytes(File().previous(5).gtid(6).query(b"BEGIN").query(SECOND).add(16, bytes(8)).data))
    with pytest.raises(PreflightError, match=r"binlog\.000007 cannot be replayed by a client: at offset") as error:
        refuse_ambiguous_text(path, "binlog.000007")
    assert "restore.replay" in error.value.hint


@given(before=st.integers(0, 40), kind=st.sampled_from([4, 14, 18, TABLE_MAP, QUERY, 40, 165]), body=st.binary())
def test_any_body_of_an_event_is_read_or_refused(before: int, kind: int, body: bytes) -> None:
    with contextlib.suppress(ZsnapdbError):
        found(File().previous(5).gtid(6).add(kind, bytes(before) + body))
