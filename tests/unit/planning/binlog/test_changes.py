"""A search selects what is sure, says what is only possible, and keeps a bounded list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zsnapdb.base.errors import UsageError
from zsnapdb.planning.binlog.changes import (
    ChangeFilter,
    ChangeKind,
    ListedTransaction,
    LoggedStatement,
    Match,
    Period,
    TableChanges,
    TableFilter,
    TransactionChanges,
    TransactionList,
    is_within,
    parse_kinds,
)

SECOND = 1_000_000
EMPTY = TransactionChanges("u:1", 100, 200, 10 * SECOND, 20 * SECOND, is_exact=True)
ROWS = replace(EMPTY, tables=(TableChanges("app", "t", 5, 0, 100), TableChanges("app", "u", 0, 7, 0)))
DROP = replace(EMPTY, statements=(LoggedStatement(ChangeKind.DDL, "app", "DROP TABLE t"),))
LOGGED = replace(EMPTY, statements=(LoggedStatement(ChangeKind.DELETE, "app", "DELETE FROM app.t"),))
CALL = replace(EMPTY, statements=(LoggedStatement(ChangeKind.OTHER, "app", "CALL p()"),))
T, DELETES = TableFilter(None, "t"), frozenset({ChangeKind.DELETE})


@pytest.mark.parametrize(
    ("conditions", "transaction", "match"),
    [
        (ChangeFilter(), EMPTY, Match.YES),
        (ChangeFilter(T), ROWS, Match.YES),
        (ChangeFilter(TableFilter("APP", "T")), ROWS, Match.YES),
        (ChangeFilter(TableFilter("other", "t")), ROWS, Match.NO),
        (ChangeFilter(T, DELETES, 100), ROWS, Match.YES),
        (ChangeFilter(T, DELETES, 101), ROWS, Match.NO),
        (ChangeFilter(None, DELETES, 101), ROWS, Match.NO),
        (ChangeFilter(T, None or frozenset(), 105), ROWS, Match.YES),
        (ChangeFilter(TableFilter(None, "u"), DELETES), ROWS, Match.NO),
        (ChangeFilter(T, frozenset(), 101), replace(ROWS, tables=(TableChanges("app", "t", 5, is_counted=False),)),
         Match.POSSIBLE),
        (ChangeFilter(TableFilter(None, "z"), frozenset(), 3), replace(ROWS, other_tables=TableChanges("", "", 3)),
         Match.POSSIBLE),
        (ChangeFilter(None, frozenset({ChangeKind.DDL})), DROP, Match.YES),
        (ChangeFilter(T, frozenset({ChangeKind.DDL}), 10), DROP, Match.YES),
        (ChangeFilter(T), DROP, Match.YES),
        (ChangeFilter(TableFilter("app", "t")), DROP, Match.YES),
        (ChangeFilter(TableFilter("other", "t")), DROP, Match.NO),
        (ChangeFilter(TableFilter("app", "t"), DELETES), replace(LOGGED, statements=(replace(
            LOGGED.statements[0], schema="x"),)), Match.POSSIBLE),
        (ChangeFilter(T, DELETES), DROP, Match.NO),
        (ChangeFilter(T, frozenset(), 10), DROP, Match.NO),
        (ChangeFilter(None, DELETES), LOGGED, Match.YES),
        (ChangeFilter(T, DELETES), LOGGED, Match.POSSIBLE),
        (ChangeFilter(None, DELETES, 1000), LOGGED, Match.POSSIBLE),
        (ChangeFilter(TableFilter(None, "te"), DELETES), LOGGED, Match.NO),
        (ChangeFilter(None, frozenset({ChangeKind.INSERT})), LOGGED, Match.NO),
        (ChangeFilter(None, DELETES), CALL, Match.POSSIBLE),
        (ChangeFilter(T), CALL, Match.NO),
        (ChangeFilter(T), replace(CALL, other_statements=1), Match.POSSIBLE),
    ],
)  # fmt: skip
def test_a_transaction_matches_surely_possibly_or_not(
    conditions: ChangeFilter, transaction: TransactionChanges, match: Match
) -> None:
    assert conditions.match(transaction) is match


@pytest.mark.parametrize(
    ("committed", "began", "is_exact", "match"),
    [
        (Period(20 * SECOND, 30 * SECOND), None, True, Match.YES),
        (Period(20 * SECOND + 1, 30 * SECOND), None, True, Match.NO),
        (Period(20 * SECOND + 1, 30 * SECOND), None, False, Match.YES),
        (Period(0, 19 * SECOND), None, True, Match.NO),
        (None, Period(10 * SECOND + 5, 10 * SECOND + 6), True, Match.YES),
        (None, Period(20 * SECOND, 30 * SECOND), True, Match.NO),
    ],
)
def test_a_period_is_about_commits_or_about_begins(
    committed: Period | None, began: Period | None, is_exact: bool, match: Match
) -> None:
    conditions = ChangeFilter(committed=committed, began=began)
    assert conditions.match(replace(EMPTY, is_exact=is_exact)) is match


def test_a_file_is_passed_over_only_if_its_times_exclude_the_period() -> None:
    assert is_within(10 * SECOND, 20 * SECOND, [Period(20 * SECOND, 30 * SECOND), None])
    assert not is_within(10 * SECOND, 20 * SECOND, [Period(21 * SECOND, 30 * SECOND)])
    assert not is_within(31 * SECOND, None, [Period(21 * SECOND, 30 * SECOND)])
    assert is_within(None, None, [Period(21 * SECOND, 30 * SECOND)])


@pytest.mark.parametrize(("by_size", "gtids"), [(False, ["u:3", "u:4"]), (True, ["u:2", "u:4"])])
def test_the_newest_or_the_largest_are_listed(by_size: bool, gtids: list[str]) -> None:
    entries = TransactionList(2, by_size=by_size)
    for number, rows in ((1, 5), (2, 50), (3, 5), (4, 6)):
        changes = replace(EMPTY, gtid=f"u:{number}", tables=(TableChanges("app", "t", rows),))
        entries.add(ListedTransaction("b.1", None, Match.YES, changes))
    assert entries.matched == 4
    assert [entry.changes.gtid for entry in entries.listed()] == gtids


def test_kinds_are_named_with_commas() -> None:
    assert parse_kinds("delete, DDL") == {ChangeKind.DELETE, ChangeKind.DDL}
    for text in ("", "select", "other"):
        with pytest.raises(UsageError):
            parse_kinds(text)
