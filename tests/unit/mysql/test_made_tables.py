"""A statement that makes a table in the server's default engine is found, with what its binlog says of that engine."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import pytest

from tests.unit.support.binlog_file import XID, File
from tests.unit.support.row_events import TABLE_MAP, compressed, table
from zsnapdb.jobs.host.binlog_spans import whole_span
from zsnapdb.mysql.binlog.created_tables import CreatedTables, name_in, unnamed_options
from zsnapdb.planning.binlog.created_tables import CreatedTable

RECORDED = Path(__file__).parents[1] / "recorded" / "made_tables"


def text(statement: bytes, variables: bytes = b"") -> bytes:
    return struct.pack("<IIBHH", 1, 0, 3, 0, len(variables)) + variables + b"app\0" + statement


def found(data: bytes | bytearray, start: int = 0) -> list[CreatedTable]:
    made = CreatedTables()
    made.read(io.BytesIO(bytes(data)), "binlog.000001", start)
    return [one for _, one in made.numbered()]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INT)",
        "create or replace table t (id INT)",
        "/* a comment */ CREATE TABLE IF NOT EXISTS `engine` (`like` INT COMMENT 'ENGINE=MyISAM')",
        'CREATE TABLE t (a TEXT DEFAULT "ENGINE") CHARSET utf8mb4',
        "CREATE TABLE t (engine INT)",
        "CREATE TABLE t (a INT, CHECK (a LIKE 'x'))",
        "CREATE TABLE t AS SELECT 1",
        "CREATE TABLE t SELECT engine FROM u WHERE a LIKE 'b'",
        "CREATE TABLE t (a INT) -- ENGINE=MyISAM",
        "CREATE SEQUENCE s START WITH 5",
    ],
)
def test_a_table_without_an_engine_is_found(statement: str) -> None:
    assert "ENGINE" in unnamed_options(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INT) ENGINE=InnoDB",
        "CREATE TABLE t (id INT) engine MyISAM",
        "CREATE TABLE t (id INT) /*!50100 ENGINE=InnoDB */",
        "CREATE TABLE t (id INT) CHARSET utf8mb4 ENGINE=MyISAM AS SELECT 1",
        "CREATE TABLE t LIKE u",
        "CREATE TABLE `a b`.`t` LIKE u",
        "CREATE TABLE IF NOT EXISTS t (LIKE u)",
        "CREATE TEMPORARY TABLE t (id INT)",
        "CREATE SEQUENCE s ENGINE=MyISAM",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE t ADD COLUMN a INT",
        "INSERT INTO t VALUES ('CREATE TABLE t (id INT)')",
    ],
)
def test_a_statement_whose_engine_is_known_is_not_found(statement: str) -> None:
    assert "ENGINE" not in unnamed_options(statement)


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("CREATE TABLE t (row_format INT) ENGINE=InnoDB", {"ROW_FORMAT"}),
        ("CREATE TABLE t (a INT) ROW_FORMAT=COMPACT", {"ENGINE"}),
        ("CREATE TABLE t (a INT) row_format redundant ENGINE InnoDB", set()),
        ("CREATE SEQUENCE s", {"ENGINE"}),
        ("CREATE TABLE t LIKE u", set()),
    ],
)
def test_a_row_format_that_is_not_named_is_found(statement: str, missing: set[str]) -> None:
    assert unnamed_options(statement) == missing


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("CREATE TABLE t (id INT)", ("app", "t")),
        ("CREATE /* x */ TABLE IF NOT EXISTS d . t(id INT)", ("d", "t")),
        ("CREATE OR REPLACE TABLE `a``b`.`c d` (id INT)", ("a`b", "c d")),
        ('CREATE TABLE "t" (id INT)', ("app", "t")),
        ("CREATE SEQUENCE `ü`.s", ("ü", "s")),
    ],
)
def test_the_table_is_named(statement: str, name: tuple[str, str]) -> None:
    assert name_in(statement, "app") == name


@pytest.mark.parametrize("release", ["mysql-5.7", "mysql-8.0", "mysql-9.7", "mariadb-10.5", "mariadb-11.8"])
def test_each_release_says_whether_a_table_with_rows_was_made_in_innodb(release: str) -> None:
    """Every table of the recorded binlogs is named after the engine in which its server made it."""
    tables = found((RECORDED / f"{release}.binlog").read_bytes())
    assert {one.table for one in tables} >= {"tInnoDB", "tMyISAM", "tMEMORY"}
    assert {one.table: one.is_transactional for one in tables} == {
        one.table: one.table.endswith("InnoDB") for one in tables
    }


@pytest.mark.parametrize(
    ("release", "bare", "whole"),
    [("mysql-9.7", {"ag", "as", "lInnoDB"}, {"bg", "bs"}), ("mariadb-11.8", {"as", "lInnoDB", "lMyISAM"}, {"bs"})],
)
def test_statements_that_a_server_wrote_without_options_are_told_apart(
    release: str, bare: set[str], whole: set[str]
) -> None:
    """All tables were made with ENGINE and a character set; under sql_mode ANSI the binlog has neither."""
    data = (RECORDED / f"{release}-ansi.binlog").read_bytes()
    assert {one.table for one in found(data) if one.lacks_options} == bare
    assert {one.table for one in found(data) if one.names_engine} <= whole


def test_the_place_of_the_transaction_is_told_from_the_start_on() -> None:
    file = File().previous(5).mark("begin").gtid(6).mark("first").query(b"CREATE TABLE a (id INT)").mark("end")
    file = file.gtid(7).query(b"CREATE TABLE b (id INT) ENGINE=InnoDB").mark("second")
    file = file.gtid(8).mark("last").query(b"CREATE TABLE c (id INT)")
    (first, named, last) = found(file.data)
    assert [one.names_engine for one in (first, named, last)] == [False, True, False]
    assert (first.start, first.offset, first.end) == (file.marks["begin"], file.marks["first"], file.marks["end"])
    assert (last.start, last.offset) == (file.marks["second"], file.marks["last"])
    assert found(file.data, file.marks["end"]) == [named, last]


def test_a_compressed_statement_of_mariadb_is_read() -> None:
    file = File(version=b"11.8.6-MariaDB").mariadb(6, standalone=True)
    (made,) = found(file.add(165, text(compressed(b"CREATE TABLE a (id INT)"))).data)
    assert (str(made), made.is_transactional) == ("app.a", None)


def mariadb(*after: str, kind: bytes = b"TABLE t (id INT)") -> CreatedTable:
    """Return app.t, made in a binlog of MariaDB in which these transactions follow."""
    file = File(version=b"11.8.6-MariaDB").mariadb(1, standalone=True).query(b"CREATE " + kind)
    for number, one in enumerate(after, 2):
        if " " in one:
            file = file.mariadb(number, standalone=True).query(one.encode())
            continue
        file = file.mariadb(number)
        for name in one[1:]:
            file = file.add(TABLE_MAP, table(name=name.encode()))
        file = file.add(XID, bytes(8)) if one[0] == "X" else file.query(b"COMMIT" if one[0] == "C" else b"ROLLBACK")
    return next(one for one in found(file.data) if one.table == "t")


@pytest.mark.parametrize(
    ("after", "is_transactional"),
    [
        (["Xt"], True),
        (["Ct"], False),
        (["Xtu"], None),
        (["Ctu"], False),
        (["Rt"], None),
        (["Rtu", "Xt"], True),
        (["Xu"], None),
        (["ALTER TABLE t ENGINE=MyISAM", "Ct"], None),
        (["DROP TABLE app.`t`", "Ct"], None),
        (["ALTER TABLE tt ADD a INT", "Ct"], False),
        (["ALTER TABLE t ADD a INT COMMENT 'ENGINE'", "Ct"], False),
        (["ALTER TABLE `t` CONVERT TO CHARACTER SET utf8mb4", "Ct"], False),
        (["ALTER TABLE t ROW_FORMAT=COMPRESSED", "Ct"], False),
        (["ALTER TABLE t RENAME u", "Ct"], None),
        (["CREATE INDEX t ON t (a)", "DROP INDEX t ON t", "CREATE VIEW v AS SELECT * FROM t", "Ct"], False),
        (["CREATE OR REPLACE TABLE t (a INT)  ENGINE=MyISAM", "Xt"], None),
        (["DROP DATABASE `app`", "Ct"], None),
        (["CREATE TABLE other.t (id INT REFERENCES app.t (id)) ENGINE=InnoDB", "Ct"], False),
        (["Xt", "ALTER TABLE t ENGINE=MyISAM", "Ct"], True),
    ],
)
def test_the_first_rows_of_a_table_tell_unless_it_was_changed_before(
    after: list[str], is_transactional: bool | None
) -> None:
    assert mariadb(*after).is_transactional is is_transactional


@pytest.mark.parametrize("after", [["Ct"], ["Rt"], ["Xt"]])
def test_the_transactions_of_a_sequence_tell_nothing(after: list[str]) -> None:
    """A sequence in InnoDB writes its row at once, in transactions that end with COMMIT."""
    assert mariadb(*after, kind=b"OR REPLACE /* x */ SEQUENCE IF NOT EXISTS t").is_transactional is None


def test_a_statement_that_may_have_made_nothing_tells_nothing() -> None:
    """CREATE TABLE IF NOT EXISTS has no XID in MySQL if the table was there, in whatever engine."""
    file = File().previous(5).gtid(6).query(b"CREATE TABLE IF NOT EXISTS a (id INT)")
    file = (
        file.gtid(7)
        .query(b"CREATE TABLE IF NOT EXISTS app.a (id INT, b INT)")
        .gtid(8)
        .query(b"CREATE TABLE b (id INT)")
    )
    assert [(one.table, one.is_transactional, one.is_touched) for one in found(file.data)] == [
        ("a", None, False),
        ("b", False, False),
    ]


def test_what_happens_to_a_table_later_is_told() -> None:
    assert not mariadb("ALTER TABLE u ADD a INT").is_touched
    altered = mariadb("ALTER TABLE t ADD a INT")
    assert (altered.is_touched, altered.is_altered) == (False, True)
    assert mariadb("ALTER TABLE t ADD a INT, ENGINE=MyISAM").is_touched
    dropped = mariadb("DROP TABLE t")
    assert (dropped.is_touched, dropped.is_dropped) == (True, True)
    assert mariadb("ALTER TABLE t ADD a INT", "ALTER TABLE t ADD b INT", "DROP TABLE t").is_dropped


@pytest.mark.parametrize(
    "before",
    [("ALTER TABLE t RENAME TO y",), ("RENAME TABLE t TO y",), ("ALTER TABLE t ADD a INT", "rename table t to y")],
)
def test_a_later_table_of_the_name_is_not_the_first_one(before: tuple[str, ...]) -> None:
    after = (*before, "CREATE TABLE t (id INT) ENGINE=InnoDB", "DROP TABLE t")
    assert not mariadb(*after).is_dropped


@pytest.mark.parametrize(("end", "expected"), [("C", True), ("X", False)])
def test_the_description_of_a_binlog_says_where_a_table_without_transactions_was_made(end: str, expected: bool) -> None:
    file = File(version=b"11.8.6-MariaDB").mariadb(1, standalone=True).mark("made").query(b"CREATE TABLE t (id INT)")
    file = file.mariadb(2).add(TABLE_MAP, table(name=b"t"))
    file = file.query(b"COMMIT") if end == "C" else file.add(XID, bytes(8))
    file = file.mariadb(3, standalone=True).query(b"ALTER TABLE t ADD a INT")
    span = whole_span(io.BytesIO(file.data), "binlog.000001")
    assert span.without_engine == ((file.marks["made"],) if expected else ())
    assert (span.transactions, span.end) == (3, len(file.data))


def test_status_variables_of_mysql_are_read_up_to_the_xid() -> None:
    before = (
        b"\0" + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x05\x03UTC" + b"\x0b\x02me\x01h" + b"\x0c\x01app\0"
    )
    for variables, expected in ((before, False), (before + b"\x11" + bytes(8), True)):
        file = File().previous(5).gtid(6).add(2, text(b"CREATE TABLE t (id INT)", variables))
        assert [one.is_transactional for one in found(file.data)] == [expected]


def test_each_statement_is_told_with_its_schema_also_a_long_compressed_one() -> None:
    """The window of the walk is 1 MiB: the body of a longer event is cut."""
    told: list[tuple[str, str]] = []
    body = b"CREATE EVENT e ON SCHEDULE EVERY 1 DAY DISABLE DO SET @a = x'%s'" % random.Random(1).randbytes(3 << 20)
    packed = b"\x83" + len(body).to_bytes(3, "big") + zlib.compress(body)
    file = File(version=b"11.8.6-MariaDB").mariadb(6, standalone=True).add(165, text(packed))
    file.mariadb(7, standalone=True).query(b"DROP EVENT e").mariadb(8).query(b"BEGIN").query(
        b"INSERT INTO t VALUES (1)"
    )
    CreatedTables(lambda schema, statement: told.append((schema, statement[:12]))).read(io.BytesIO(file.data), "b.1", 0)
    assert told == [("app", "CREATE EVENT"), ("app", "DROP EVENT e")]
