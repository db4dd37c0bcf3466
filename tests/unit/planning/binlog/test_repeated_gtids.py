"""A server that gives GTIDs to other transactions a second time is found, and one that does not is not."""

from __future__ import annotations

import pytest

from tests.unit.support.binlog_window import A, B, Kept, gtids
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.planning.binlog.failover_history import repeated_gtids, reused_gtids

ONE = "server_id 1"


def maria(incarnation: str, number: int, previous: str, reached: str, *, server: str = ONE, end: int = 1000) -> Kept:
    """A file of MariaDB. Files of one number are the same file, as far as each is archived."""
    return Kept(
        incarnation,
        number,
        GtidPosition.parse(previous),
        GtidPosition.parse(reached),
        100 * number,
        server,
        end=end,
        fingerprint=f"{incarnation if number > 2 else 0} {number}",
    )


OLD = [maria("1", 1, "", "0-1-10"), maria("1", 2, "0-1-10", "0-1-20"), maria("1", 3, "0-1-20", "0-1-28")]


def found(*files: Kept) -> list[tuple[str, str]]:
    return [(part.history, part.gtids) for part in repeated_gtids(files)]


@pytest.mark.parametrize(
    ("newer", "again"),
    [
        ([maria("2", 3, "0-1-20", "0-1-20")], [("1", "0-1-21 to 0-1-28")]),
        ([maria("2", 3, "0-1-20", "0-1-45")], [("1", "0-1-21 to 0-1-28")]),
        ([maria("2", 2, "0-1-10", "0-1-15", end=500), maria("2", 3, "0-1-15", "0-1-16")], [("1", "0-1-16 to 0-1-28")]),
        ([maria("2", 4, "", "0-1-3")], [("1", "0-1-1 to 0-1-28")]),
        ([maria("2", 4, "0-1-27", "0-1-40")], [("1", "0-1-28")]),
        ([maria("2", 4, "0-1-28", "0-1-40")], []),
        ([maria("2", 4, "0-2-60", "0-1-70")], []),
        ([maria("2", 3, "0-1-20", "0-5-22", server="server_id 5")], []),
        (
            [maria("2", 3, "0-1-20", "0-1-24"), maria("3", 3, "0-1-20", "0-1-21")],
            [("1", "0-1-21 to 0-1-28"), ("2", "0-1-21 to 0-1-24")],
        ),
    ],
    ids=["at once", "past", "cut file", "reset", "last one", "end", "failed over", "new server_id", "twice"],
)
def test_gtids_that_a_server_of_mariadb_gives_a_second_time_are_found(
    newer: list[Kept], again: list[tuple[str, str]]
) -> None:
    assert found(*OLD, *newer) == again


def test_of_mysql_the_transactions_of_the_server_itself_count() -> None:
    old = [Kept("1", 1, GtidSet(), gtids(f"{A}:1-10,{B}:1-5"), 10, fingerprint="1")]
    again = Kept("2", 1, GtidSet(), gtids(f"{A}:1-2"), 100, fingerprint="2")
    assert found(*old, again) == [("1", f"{A}:1-10")]
    part = repeated_gtids([*old, again])[0]
    assert ("auto.cnf" in part.hint, "second time" in part.text) == (True, True)
    assert found(*old, Kept("2", 1, GtidSet(), gtids(f"{B}:6"), 100, B, fingerprint="2")) == []


def test_gtids_of_mysql_that_somebody_set_are_not_given_again() -> None:
    old = Kept("1", 1, GtidSet(), gtids(f"{A}:1-10"), 10, fingerprint="1")
    reset = Kept("2", 1, GtidSet(), None, 100, fingerprint="2")
    purged_set = Kept("2", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-12"), 110, fingerprint="3")
    assert found(old, reset, purged_set) == []
    assert found(old, reset, Kept("2", 2, GtidSet(), gtids(f"{A}:1-2"), 110, fingerprint="3")) == [("1", f"{A}:1-10")]


def test_without_gtids_nothing_is_known() -> None:
    assert found(Kept("1", 1, None, None, 10), Kept("2", 1, None, None, 20, fingerprint="2")) == []
    assert reused_gtids(ONE, None, [GtidPosition.parse("0-1-3")]) == ""


def test_each_domain_counts_by_itself() -> None:
    known = [GtidPosition.parse("0-1-9,7-1-4"), GtidPosition.parse("0-2-20,7-1-6"), None]
    assert reused_gtids(ONE, GtidPosition.parse("0-1-9,7-1-5"), known) == "7-1-6"
    assert reused_gtids(ONE, GtidPosition.parse("0-1-7"), known) == "0-1-8 to 0-1-9, 7-1-1 to 7-1-6"
