"""What can be recovered is followed through files, gaps, resets and failovers.

Nothing is promised that the archive does not hold.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, A, B, Kept, at, gtids, own
from zsnapdb.gtid import GtidPosition, GtidSet
from zsnapdb.model import BinlogCoordinates
from zsnapdb.planning.binlog.archive import missing_between
from zsnapdb.planning.binlog.window import NEWEST, NOT_ARCHIVED, BackupPoint, follow, window


def names(point: BackupPoint, files: list[Kept]) -> tuple[list[tuple[str, str, int]], str]:
    route = follow(point, files)
    return [(s.incarnation, s.name, s.start) for s in route.stretches], route.ends


def test_a_backup_is_followed_from_its_offset_to_the_newest_transaction() -> None:
    files = [own(1), own(2), own(3), own(4, sealed=False)]
    found = follow(at(25, f"{A}:1-15"), files)
    assert [(s.name, s.start, s.end) for s in found.stretches] == [
        ("binlog.000002", 500, 1000),
        ("binlog.000003", 100, 1000),
        ("binlog.000004", 100, 1000),
    ]
    assert (found.to, found.ends, str(found.reached)) == (49 * SECOND, NEWEST, f"{A}:1-40")


def test_a_gap_ends_it_and_a_later_backup_begins_a_new_range() -> None:
    files = [own(1), own(2), own(4), own(5)]
    found = window([at(25, f"{A}:1-15", name="one"), at(45, f"{A}:1-35", "binlog.000004", name="two")], files)
    assert [(r.start, r.end, r.backups) for r in found.ranges] == [
        (25 * SECOND, 29 * SECOND, ("one",)),
        (45 * SECOND, 59 * SECOND, ("two",)),
    ]
    ((start, end, reason),) = [(h.start, h.end, h.reason) for h in found.holes]
    assert (start, end) == (29 * SECOND, 45 * SECOND)
    assert f"{A}:21-30" in reason


def test_a_file_that_is_missing_but_held_no_transaction_is_no_gap() -> None:
    four = Kept("1", 4, gtids(f"{A}:1-20"), gtids(f"{A}:21-30"), 40)
    assert names(at(25, f"{A}:1-15"), [own(1), own(2), four])[1] == NEWEST


def test_a_file_that_was_not_archived_to_its_end_is_a_gap() -> None:
    files = [own(1), Kept("1", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-18"), 20, is_sealed=False), own(3)]
    found = follow(at(25, f"{A}:1-15"), files)
    assert [s.name for s in found.stretches] == ["binlog.000002"]
    assert f"{A}:19-20" in found.ends


def test_a_backup_that_the_archive_has_not_reached_stands_alone() -> None:
    found = follow(at(25, f"{A}:1-15"), [own(1)])
    assert (found.stretches, found.to, found.ends) == ((), 25 * SECOND, NOT_ARCHIVED)


def test_after_a_reset_a_backup_is_not_followed_into_files_that_have_the_same_names_and_gtids() -> None:
    again = [own(number, 1000 + 10 * number, incarnation="2") for number in (1, 2, 3)]
    found = names(at(25, f"{A}:1-15"), [own(1), own(2), *again])
    assert found == ([("1", "binlog.000002", 500)], NEWEST)
    assert names(at(1025, f"{A}:1-15"), [own(1), own(2), *again])[0][0] == ("2", "binlog.000002", 500)


def test_after_a_failover_it_goes_on_by_gtids_in_the_file_of_the_other_server() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B, base="mysql-bin")
    older = Kept("2", 76, gtids(f"{A}:1-5"), gtids(f"{A}:6-18"), 10, B, base="mysql-bin")
    found = follow(at(25, f"{A}:1-15"), [own(1), own(2), older, taken_over])
    assert [(s.incarnation, s.name, s.start) for s in found.stretches] == [
        ("1", "binlog.000002", 500),
        ("2", "mysql-bin.000077", 100),
    ]
    assert str(found.reached) == f"{A}:1-20,{B}:1-10"


def test_transactions_the_failover_lost_are_left_out() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{B}:1-10"), 30, B)
    found = follow(at(25, f"{A}:1-15"), [own(1), own(2), taken_over])
    assert [str(s.only) for s in found.stretches] == [f"{A}:1-18", "None"]


def test_a_backup_taken_on_the_new_server_before_it_was_archived_is_found_by_gtids() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B)
    point = at(35, f"{A}:1-20,{B}:1-3", "other.000001", 7, B)
    assert names(point, [own(1), own(2), taken_over])[0] == [("2", "binlog.000077", 100)]


def test_a_server_that_was_set_back_is_followed_into_its_newer_history() -> None:
    lost = Kept("1", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-25"), 30, is_sealed=False)
    other = Kept("2", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-29"), 100)
    assert names(at(25, f"{A}:1-15"), [own(1), own(2), lost, other])[0] == [
        ("1", "binlog.000002", 500),
        ("2", "binlog.000003", 100),
    ]


def test_without_gtids_the_files_follow_by_number_within_one_history_only() -> None:
    def plain(number: int, incarnation: str = "1", sealed: bool = True) -> Kept:
        return Kept(incarnation, number, GtidSet(), None, 10 * number, is_anonymous=True, is_sealed=sealed)

    point = BackupPoint("b", 25 * SECOND, 25 * SECOND, A, BinlogCoordinates("binlog.000002", 500), None)
    assert [s.name for s in follow(point, [plain(1), plain(2), plain(3), plain(4, "2")]).stretches] == [
        "binlog.000002",
        "binlog.000003",
    ]
    assert [s.name for s in follow(point, [plain(2), plain(4)]).stretches] == ["binlog.000002"]
    assert [s.name for s in follow(point, [plain(2, sealed=False), plain(3)]).stretches] == ["binlog.000002"]


def test_mariadb_may_forget_a_domain_between_files_and_nothing_else() -> None:
    one = Kept("1", 1, GtidPosition(), GtidPosition.parse("0-1-10,5-1-3"), 10)
    assert missing_between(one, 2, GtidPosition.parse("0-1-10")) is None
    assert missing_between(one, 2, GtidPosition.parse("0-1-11,5-1-3")) is not None
    assert missing_between(one, 3, GtidPosition.parse("0-1-10,5-1-3")) is None


def test_nothing_is_recoverable_without_a_backup() -> None:
    assert window([], [own(1), own(2)]).ranges == ()


@given(st.sets(st.integers(1, 12)), st.lists(st.integers(10, 130), unique=True, max_size=6))
def test_ranges_and_holes_alternate_and_a_range_never_crosses_a_missing_file(
    missing: set[int], seconds: list[int]
) -> None:
    files = [own(number) for number in range(1, 13) if number not in missing]
    points = [
        at(second, f"{A}:1-{second - 10 + 1}", f"binlog.{second // 10:06d}", name=str(second))
        for second in sorted(seconds)
        if second % 10 != 9
    ]
    found = window(points, files)
    assert len(found.holes) == max(0, len(found.ranges) - 1)
    edges = [
        edge
        for r, h in zip(found.ranges, [*found.holes, None], strict=False)
        for edge in (r.start, r.end, *((h.start, h.end) if h else ()))
    ]
    assert edges == sorted(edges)
    for route in found.routes:
        numbers = [int(s.name[-6:]) for s in route.stretches]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert not set(numbers) & missing
    assert {b for r in found.ranges for b in r.backups} == {p.backup_id for p in points}
