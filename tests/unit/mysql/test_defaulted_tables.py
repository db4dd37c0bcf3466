"""A statement that makes a table in the server's default engine is found, wherever a binlog holds it."""

from __future__ import annotations

import io
import struct

import pytest

from tests.unit.support.binlog_file import File
from tests.unit.support.row_events import compressed
from zsnapdb.mysql.binlog.defaulted_tables import defaulted_tables, is_defaulted


def text(statement: bytes) -> bytes:
    return struct.pack("<IIBHH", 1, 0, 3, 0, 0) + b"app\0" + statement


def found(file: File, start: int = 0) -> list[int]:
    return list(defaulted_tables(io.BytesIO(bytes(file.data)), "binlog.000001", start))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INT)",
        "create or replace table t (id INT)",
        "/* a comment */ CREATE TABLE IF NOT EXISTS `engine` (`like` INT COMMENT 'ENGINE=MyISAM')",
        'CREATE TABLE t (a TEXT DEFAULT "ENGINE") CHARSET utf8mb4',
        "CREATE TABLE t AS SELECT 1",
    ],
)
def test_a_table_without_an_engine_is_found(statement: str) -> None:
    assert is_defaulted(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INT) ENGINE=InnoDB",
        "CREATE TABLE t (id INT) engine MyISAM",
        "CREATE TABLE t (id INT) /*!50100 ENGINE=InnoDB */",
        "CREATE TABLE t LIKE u",
        "CREATE TEMPORARY TABLE t (id INT)",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE t ADD COLUMN a INT",
        "INSERT INTO t VALUES ('CREATE TABLE t (id INT)')",
    ],
)
def test_a_statement_whose_engine_is_known_is_not_found(statement: str) -> None:
    assert not is_defaulted(statement)


def test_the_offset_of_the_event_is_told_from_the_start_on() -> None:
    file = File().previous(5).gtid(6).mark("first").query(b"CREATE TABLE a (id INT)")
    file = file.gtid(7).query(b"CREATE TABLE b (id INT) ENGINE=InnoDB")
    file = file.gtid(8).mark("last").query(b"CREATE TABLE c (id INT)")
    assert found(file) == [file.marks["first"], file.marks["last"]]
    assert found(file, file.marks["first"] + 1) == [file.marks["last"]]


def test_a_compressed_statement_of_mariadb_is_read() -> None:
    file = File(version=b"11.8.6-MariaDB").mariadb(6)
    assert len(found(file.add(165, text(compressed(b"CREATE TABLE a (id INT)"))))) == 1
