"""What an upgrade rehearsal makes of what servers say."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.jobs.clone.upgrade import Rehearsal
from zsnapdb.planning.clone.migration_findings import ComparedQuery, QueryResult, complaints, judge_table, unknown_modes


@pytest.mark.parametrize(
    ("rows", "good"),
    [
        ([("status", "OK"), ("status", "OK")], True),
        ([("status", "Table is already up to date")], True),
        ([("Warning", "Column x has an old type"), ("status", "OK")], False),
        ([("error", "Table upgrade required. Please do REPAIR"), ("status", "OK")], False),
        ([("note", "The storage engine for the table doesn't support check")], True),
        ([("status", "Operation failed")], False),
        ([("error", "Corrupt")], False),
        ([], False),
    ],
)
def test_only_ok_without_a_complaint_is_good(rows: list[tuple[str, str]], good: bool) -> None:
    assert judge_table("db.t", rows).is_good == good


def test_a_log_line_counts_once() -> None:
    log = "1 [Note] a\n2 [Warning] old option\n3 [ERROR] broken\n4 [Warning] old option\n"
    assert complaints(log) == ("[Warning] old option", "[ERROR] broken")


def test_another_result_or_a_failure_is_a_problem() -> None:
    same, other = QueryResult(3, "a"), QueryResult(3, "b")
    queries = (
        ComparedQuery("q1", same, same),
        ComparedQuery("q2", same, other),
        ComparedQuery("q3", same, None, "no such function"),
    )
    result = Rehearsal(
        "b", "10.11", "11.8", (), (judge_table("db.t", [("status", "Operation failed")]),), queries, (), ""
    )
    assert result.problems == (
        "table db.t: Operation failed",
        "`q2`: the result differs from the result before the upgrade",
        "`q3`: no such function",
    )


@pytest.mark.parametrize(
    ("flavour", "version", "gone"),
    [
        (Flavour.MYSQL, "5.7.42-log", ()),
        (Flavour.MYSQL, "8.0.46-0ubuntu0.22.04.5", ("NO_AUTO_CREATE_USER", "NO_TABLE_OPTIONS")),
        (Flavour.MARIADB, "11.8.9-MariaDB", ()),
    ],
)
def test_a_mode_that_the_new_server_would_not_start_with_is_known(
    flavour: Flavour, version: str, gone: tuple[str, ...]
) -> None:
    assert unknown_modes(flavour, version, "STRICT_ALL_TABLES,NO_AUTO_CREATE_USER,ANSI,NO_TABLE_OPTIONS") == gone
    assert unknown_modes(flavour, version, "") == ()
