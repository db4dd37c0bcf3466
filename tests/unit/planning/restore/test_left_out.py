"""The number of transactions that a rewind leaves out comes from GTIDs and binlogs, and is never too sure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.planning.binlog.changes import ChangeKind, LoggedStatement, TableChanges, TransactionChanges
from zsnapdb.planning.restore.left_out import MOST_NAMED, LeftOut, LeftOutCounter

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def changes(gtid: str | None, at: int = 0, *tables: TableChanges, ddl: int = 0) -> TransactionChanges:
    texts = tuple(LoggedStatement(ChangeKind.DDL, "s", "DROP TABLE t") for _ in range(ddl))
    return TransactionChanges(gtid, 4, 9, at, at, True, tables, texts)


def mysql(point: int, executed: int) -> LeftOutCounter:
    own = [GtidSet.parse(f"{UUID}:1-{number}" if number else "") for number in (point, executed)]
    return LeftOutCounter(Flavour.MYSQL, own[0], own[1])


def mariadb(point: str, executed: str) -> LeftOutCounter:
    return LeftOutCounter(Flavour.MARIADB, GtidPosition.parse(point), GtidPosition.parse(executed))


@given(st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_both_families_count_the_transactions_after_the_point(point: int, more: int, is_mysql: bool) -> None:
    executed = point + more
    counter = mysql(point, executed) if is_mysql else mariadb(f"0-1-{point}", f"0-1-{executed}")
    for number in range(1, executed + 1):
        gtid = f"{UUID}:{number}" if is_mysql else f"0-1-{number}"
        counter.add(changes(gtid, number, TableChanges("s", "t", deleted=2)))
    result = counter.result(GtidSet() if is_mysql else GtidPosition())
    times = (point + 1, executed) if more else (None, None)
    assert (result.transactions, result.is_least, result.first, result.last) == (more, False, *times)
    assert [table.deleted for table in result.tables] == ([2 * more] if more else [])
    assert result.unknown == ()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_the_number_is_a_lower_bound_if_binlogs_are_not_there(point: int, purged: int, more: int) -> None:
    start = point + 1 + purged
    counter = mariadb(f"0-1-{point}", f"0-1-{start + more}")
    for number in range(start + 1, start + more + 1):
        counter.add(changes(f"0-1-{number}"))
    result = counter.result(GtidPosition.parse(f"0-1-{start}"))
    assert (result.transactions, result.is_least) == (more, True)
    assert any("no longer has" in text for text in result.unknown)


def test_a_mysql_set_counts_also_what_the_binlogs_lack() -> None:
    result = mysql(3, 10).result(GtidSet(), unread=["binlog.000009 was not read"])
    assert (result.transactions, result.is_least, result.last) == (7, False, None)
    assert result.unknown == ("binlog.000009 was not read",)
    assert "lack 7" in mysql(3, 10).result(GtidSet()).unknown[0]


def test_a_point_of_another_history_has_no_number_on_mariadb() -> None:
    """A MariaDB position shows only the newest transaction, so the difference of two histories is unknown."""
    ahead = mariadb("0-1-50", "0-2-40").result(GtidPosition())
    beside = mariadb("0-1-50", "0-2-60")
    beside.add(changes("0-2-50"))
    begun = mariadb("0-1-50", "0-2-60")
    begun.start(GtidPosition.parse("0-2-50"))
    for result in (ahead, beside.result(GtidPosition()), begun.result(GtidPosition())):
        assert result == LeftOut(unknown=result.unknown)
        assert "another history" in result.unknown[0]


def test_tables_are_named_by_rows_and_their_number_is_bounded() -> None:
    counter = mysql(0, MOST_NAMED + 3)
    for number in range(1, MOST_NAMED + 4):
        counter.add(changes(f"{UUID}:{number}", 0, TableChanges("s", f"t{number}", inserted=number), ddl=1))
    counter.add(changes(None))
    result = counter.result(GtidSet())
    assert [table.table for table in result.tables][:2] == ["t13", "t12"]
    assert (len(result.tables), result.more_tables, result.statements) == (MOST_NAMED, 3, 13)
    assert (result.is_least, "without a GTID" in result.unknown[0]) == (True, True)
