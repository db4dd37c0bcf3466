"""Which statements block a global read lock, which may be killed, and how long to wait between attempts."""

from __future__ import annotations

from itertools import islice

import pytest

from zsnapdb.planning.backup.lock_strategy import Statement, delays, long_statements, to_kill


def row(
    number: int, seconds: int, text: str | None, command: str = "Query", user: str = "app", state: str = "executing"
) -> dict[str, object]:
    return {"Id": number, "User": user, "Command": command, "Time": seconds, "Info": text, "State": state}


def test_only_long_statements_of_people_stand_in_the_way_longest_first() -> None:
    rows = [
        row(1, 9, "SELECT 1"),
        row(2, 30, "ALTER TABLE t ADD c INT"),
        row(3, 0, "SELECT 2"),
        row(4, 99, None, "Sleep"),
        row(5, 500, "INSERT", "Query", "system user"),
        row(6, 500, "tick", "Daemon", "event_scheduler"),
        row(7, 60, "SHOW FULL PROCESSLIST"),
        row(8, 77, "SELECT 3", "Execute"),
    ]
    assert [s.connection_id for s in long_statements(rows, frozenset({7}), 1.0)] == [8, 2, 1]


def test_who_waits_for_the_flush_is_not_the_one_in_the_way() -> None:
    rows = [
        row(1, 9, "SELECT 1"),
        row(2, 8, "UPDATE t SET a = 1", state="Waiting for table flush"),
        row(3, 7, "COMMIT", state="Waiting for global read lock"),
    ]
    assert [s.connection_id for s in long_statements(rows, frozenset(), 0.0)] == [1]


def test_nobody_is_ended_unless_the_configuration_says_so() -> None:
    statements = [Statement(1, 9, "app", "SELECT 1"), Statement(2, 9, "app", "UPDATE t SET a = 1")]
    assert to_kill(statements, "never") == []
    assert [s.connection_id for s in to_kill(statements, "select")] == [1]
    assert [s.connection_id for s in to_kill(statements, "all")] == [1, 2]


@pytest.mark.parametrize("text", ["select 1", "/* report */ SELECT 1", "-- x\n  SELECT 2", "(SELECT 1)", "TABLE t"])
def test_a_query_is_known_behind_its_comments(text: str) -> None:
    assert Statement(1, 1, "u", text).only_reads


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t",
        "/* SELECT */ UPDATE t SET a=1",
        "INSERT INTO t SELECT 1",
        "WITH a AS (SELECT 1) DELETE FROM t",
        "/*! UPDATE t SET a=1 */ SELECT 1",
        "CALL select_all()",
    ],
)
def test_what_may_write_is_no_query(text: str) -> None:
    assert not Statement(1, 1, "u", text).only_reads


def test_attempts_are_spaced_out_but_never_for_long() -> None:
    assert list(islice(delays(), 8)) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
