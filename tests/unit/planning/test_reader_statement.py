"""Which statements who may only read can send."""

from __future__ import annotations

import pytest

from zsnapdb.planning.sql_quoting import LONGEST, refusal_of


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "  select * from t;",
        "(SELECT 1) UNION (SELECT 2)",
        "((select 1))",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "desc t",
        "TABLE t",
        "VALUES ROW(1)",
        "SELECT/**/1",
        "SELECT`a`FROM t",
    ],
)
def test_statements_that_read_are_run(statement: str) -> None:
    assert refusal_of(statement) == ""


@pytest.mark.parametrize(
    "statement",
    [
        *("", " ", ";", "1", "-- x\nSELECT 1", "# x\nSELECT 1", "/* x */ SELECT 1", "/*! SET x = 1 */", "\0SELECT 1"),
        *("INSERT INTO t VALUES (1)", "UPDATE t SET a = 1", "DELETE FROM t", "REPLACE INTO t VALUES (1)"),
        *("SET SESSION TRANSACTION READ WRITE", "START TRANSACTION READ WRITE", "BEGIN NOT ATOMIC COMMIT; END"),
        *("CALL p()", "EXECUTE IMMEDIATE 'DROP TABLE t'", "PREPARE s FROM 'DROP TABLE t'", "EXECUTE s", "DO f()"),
        *("COMMIT", "ROLLBACK", "XA START 'x'", "LOCK TABLES t WRITE", "HANDLER t OPEN", "USE x", "KILL 1"),
        *("CREATE TABLE t (a INT)", "DROP TABLE t", "TRUNCATE t", "GRANT ALL ON *.* TO x", "LOAD DATA INFILE 'x'"),
        *(
            "SELECTION",
            "SHOWX",
            "SELECT_1",
            "SELECT$x: BEGIN NOT ATOMIC COMMIT; END",
            "ANALYZE DELETE FROM t",
            "IF 1 THEN SELECT 1; END IF",
            "\u017felect 1",
        ),
        "SELECT 1" + " " * LONGEST,
    ],
)
def test_others_are_refused_with_a_reason(statement: str) -> None:
    assert refusal_of(statement)
