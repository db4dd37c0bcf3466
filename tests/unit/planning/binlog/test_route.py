"""The route through the archive: which binlogs continue a backup, and the kind of its end.

No route crosses a gap or leads into another history. The laws for random histories are in `test_route_laws.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, A, B, Kept, at, gtids, own
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.planning.binlog.archive import missing_between
from zsnapdb.planning.binlog.route import NEWEST, NO_ARCHIVE, NOT_ARCHIVED, BackupPoint, EndKind, follow

POINT = at(25, f"{A}:1-15")


def names(point: BackupPoint, files: list[Kept]) -> tuple[list[tuple[str, str, int]], EndKind]:
    route = follow(point, files)
    starts = [route.start, *(file.start for file in route.files[1:])]
    return [(file.incarnation, file.name, start) for file, start in zip(route.files, starts, strict=False)], (
        route.end.kind
    )


def headed(file: Kept) -> Kept:
    """Return the file with a head that no other file has."""
    return replace(file, fingerprint=f"{file.incarnation} {file.number}")


def test_a_backup_is_followed_from_its_offset_to_the_newest_transaction() -> None:
    files = [own(1), own(2), own(3), own(4, rotated=False)]
    route = follow(POINT, files)
    assert (route.files, route.start, route.is_start_exact) == (tuple(files[1:]), 500, True)
    assert (route.to, route.end, str(route.reached)) == (49 * SECOND, NEWEST, f"{A}:1-40")


def test_a_gap_ends_it_and_names_what_is_missing() -> None:
    route = follow(POINT, [own(1), own(2), own(4), own(5)])
    assert ([file.number for file in route.files], route.end.kind) == ([2], EndKind.GAP)
    assert f"{A}:21-30" in route.end.reason
    noted = Kept("1", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-30"), 30, gap="binlog.000003 could not be read")
    route = follow(POINT, [own(1), own(2), noted])
    assert (len(route.files), route.end.kind) == (1, EndKind.GAP)
    assert "could not be read" in route.end.reason


def test_a_file_that_is_missing_but_held_no_transaction_is_no_gap() -> None:
    four = Kept("1", 4, gtids(f"{A}:1-20"), gtids(f"{A}:21-30"), 40)
    assert follow(POINT, [own(1), own(2), four]).end == NEWEST


def test_a_file_that_was_not_archived_to_its_end_is_a_gap() -> None:
    files = [own(1), Kept("1", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-18"), 20, is_rotated=False), own(3)]
    route = follow(POINT, files)
    assert [file.name for file in route.files] == ["binlog.000002"]
    assert f"{A}:19-20" in route.end.reason


def test_a_backup_that_the_archive_has_not_reached_stands_alone() -> None:
    route = follow(POINT, [own(1)])
    assert (route.files, route.to, route.end) == ((), 25 * SECOND, NOT_ARCHIVED)
    assert follow(POINT, []).end == NO_ARCHIVE


def test_after_a_reset_a_backup_is_not_followed_into_files_that_have_the_same_names_and_gtids() -> None:
    again = [own(number, 1000 + 10 * number, incarnation="2") for number in (1, 2, 3)]
    files = [headed(file) for file in (own(1), own(2), *again)]
    first, second = replace(POINT, fingerprint="1 2"), replace(at(1025, f"{A}:1-15"), fingerprint="2 2")
    assert names(first, files) == ([("1", "binlog.000002", 500)], EndKind.RESET)
    assert names(second, files)[0][0] == ("2", "binlog.000002", 500)


@given(
    taken=st.lists(st.integers(1, 60), min_size=2, max_size=4),
    created=st.lists(st.integers(1, 60), min_size=5, max_size=5),
    file=st.sampled_from(["binlog.000002", "other.000007", None]),
)
def test_clock_does_not_choose_between_two_histories(taken: list[int], created: list[int], file: str | None) -> None:
    """The backup does not record the head of its binlog, and the clock may have been wrong at any moment."""
    numbers = [("1", 1), ("1", 2), ("2", 1), ("2", 2), ("2", 3)]
    files = [headed(own(number, at, incarnation=name)) for (name, number), at in zip(numbers, created, strict=True)]
    starts = {tuple(names(at(second, f"{A}:1-15", file), files)[0][:1]) for second in taken}
    assert starts <= {()}


def test_a_backup_is_followed_up_to_where_the_binlogs_got_other_names() -> None:
    """The renamed files are archived again as a new history. GTIDs prove nothing here: some are in no binlog."""
    files = [own(1), own(2), own(3, rotated=False)]
    again = [replace(file, incarnation="2", base="other") for file in (*files, own(4))]
    point = at(25, f"{A}:1-15,{B}:1-5")
    assert names(point, [*files, *again]) == ([("1", "binlog.000002", 500), ("1", "binlog.000003", 100)], EndKind.RESET)
    assert "other instead of binlog" in follow(point, [*files, *again]).end.reason
    after = at(45, f"{A}:1-35,{B}:1-5", "other.000004")
    assert names(after, [*files, *again]) == ([("2", "other.000004", 500)], EndKind.NEWEST)


def test_a_backup_after_a_reset_is_not_found_in_the_history_before_it() -> None:
    """Its own binlog is not archived so far; the older one of that name fits it in every number."""
    again = own(1, 1010, incarnation="2")
    assert follow(at(1025, f"{A}:1-15"), [own(1), own(2), again]).end == NOT_ARCHIVED


def test_no_transactions_at_all_are_no_place_in_a_history() -> None:
    assert follow(at(1005, "", "binlog.000009", 100), [own(1), own(2)]).end == NOT_ARCHIVED


def test_a_position_that_two_histories_fit_is_in_neither() -> None:
    """The reset came between the backup's beginning and its snapshot, or after the snapshot: nothing says which."""
    again = [own(number, 26 + number, incarnation="2") for number in (1, 2)]
    point = BackupPoint(
        "b", 25 * SECOND, 60 * SECOND, A, BinlogCoordinates("binlog.000002", 500), gtids(f"{A}:1-15"), Flavour.MYSQL
    )
    assert follow(point, [own(1), own(2), *again]).end.kind is EndKind.AMBIGUOUS


def test_after_a_failover_it_goes_on_by_gtids_in_the_file_of_the_other_server() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B, base="mysql-bin")
    older = Kept("2", 76, gtids(f"{A}:1-5"), gtids(f"{A}:6-18"), 10, B, base="mysql-bin")
    files = [own(1), own(2), older, taken_over]
    assert names(POINT, files)[0] == [("1", "binlog.000002", 500), ("2", "mysql-bin.000077", 100)]
    assert str(follow(POINT, files).reached) == f"{A}:1-20,{B}:1-10"


def test_a_failover_that_lost_transactions_ends_it_and_names_them() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{B}:1-10"), 30, B)
    route = follow(POINT, [own(1), own(2), taken_over])
    assert ([file.incarnation for file in route.files], route.end.kind) == (["1"], EndKind.LOST_IN_FAILOVER)
    assert f"its binlogs do not have transactions {A}:19-20" in route.end.reason


def test_another_server_that_wrote_nothing_of_its_own_ends_nothing() -> None:
    replica = Kept("2", 77, gtids(f"{A}:1-5"), gtids(f"{A}:6-18"), 10, B)
    assert follow(POINT, [own(1), own(2), replica]).end == NEWEST


def heads(text: str) -> GtidPosition:
    return GtidPosition.parse(text)


MARIADB = BackupPoint(
    "b", 25 * SECOND, 25 * SECOND, "2", BinlogCoordinates("binlog.000002", 500), heads("0-2-50"), Flavour.MARIADB
)
OLD_PRIMARY = Kept("1", 2, heads("0-2-48"), heads("0-2-56"), 20, "2")


def test_a_failover_that_lost_more_than_was_written_since_is_not_promised_as_the_newest() -> None:
    """MariaDB compares the numbers of a domain alone: 0-3-54 is not one of the transactions up to 0-2-56."""
    taken_over = Kept("2", 1, heads("0-2-51"), heads("0-3-54"), 40, "3")
    route = follow(MARIADB, [OLD_PRIMARY, taken_over])
    assert (route.files, route.end.kind) == ((OLD_PRIMARY,), EndKind.UNPROVEN_FAILOVER)
    assert "committed under numbers of this history" in route.end.reason
    same_number = replace(taken_over, gtids=heads("0-3-56"))
    assert follow(MARIADB, [OLD_PRIMARY, same_number]).end.kind is EndKind.UNPROVEN_FAILOVER
    in_the_same_second = replace(taken_over, created=OLD_PRIMARY.created)
    assert follow(MARIADB, [OLD_PRIMARY, in_the_same_second]).end.kind is EndKind.UNPROVEN_FAILOVER


def test_a_replica_that_has_the_last_transaction_or_stopped_before_it_ends_nothing() -> None:
    same = Kept("2", 1, heads("0-2-51"), heads("0-2-56"), 40, "3")
    assert follow(MARIADB, [OLD_PRIMARY, same]).end == NEWEST
    behind = Kept("2", 1, heads("0-2-51"), heads("0-2-55"), 40, "3")
    assert follow(MARIADB, [OLD_PRIMARY, behind]).end == NEWEST
    failed_back_from = Kept("2", 1, heads("0-2-50"), heads("0-3-54"), 15, "3")
    end = follow(MARIADB, [OLD_PRIMARY, failed_back_from]).end
    assert (end.kind, "only times show that binlog.000001 of server 3" in end.reason) == (EndKind.NEWEST, True)


def test_without_gtids_another_server_that_committed_later_is_not_passed_over() -> None:
    point = replace(POINT, gtids=None)
    other = Kept("2", 1, gtids(f"{A}:1-18"), gtids(f"{B}:1-2"), 40, B)
    for here in (own(2), plain(2)):
        route = follow(point, [here, other])
        assert (route.files, route.end.kind) == ((here,), EndKind.UNPROVEN_FAILOVER)
        end = follow(point, [here, replace(other, created=15)]).end
        assert (end.kind, "only times show" in end.reason) == (EndKind.NEWEST, True)


def test_a_server_that_was_set_back_and_took_over_again_is_not_taken_for_its_older_self() -> None:
    older = Kept("0", 1, GtidSet(), gtids(f"{B}:1-10"), 1, B)
    here = Kept("1", 2, gtids(f"{A}:1-10,{B}:1-10"), gtids(f"{A}:11-20"), 20)
    again = Kept("2", 1, gtids(f"{A}:1-10"), gtids(f"{B}:1-4"), 60, B)
    point = at(25, f"{A}:1-15,{B}:1-10")
    assert follow(point, [older, here, again]).end.kind is EndKind.UNPROVEN_FAILOVER
    end = follow(point, [older, here, replace(again, created=2)]).end
    assert (end.kind, "only times show" in end.reason) == (EndKind.NEWEST, True)


def test_a_backup_taken_on_the_new_server_before_it_was_archived_is_found_by_gtids() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B)
    point = at(35, f"{A}:1-20,{B}:1-3", "other.000001", 7, B)
    assert names(point, [own(1), own(2), taken_over])[0] == [("2", "binlog.000077", 100)]
    assert not follow(point, [own(1), own(2), taken_over]).is_start_exact


def test_a_server_that_was_set_back_is_followed_into_its_newer_history() -> None:
    lost = Kept("1", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-25"), 30, is_rotated=False)
    other = Kept("2", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-29"), 100)
    files = [headed(file) for file in (own(1), own(2), lost, other)]
    assert names(POINT, files) == ([("1", "binlog.000002", 500), ("2", "binlog.000003", 100)], EndKind.NEWEST)
    behind = at(33, f"{A}:1-23", "binlog.000003")
    assert names(behind, files) == ([], EndKind.AMBIGUOUS)
    behind = replace(behind, fingerprint="1 3")
    assert names(behind, files) == ([("1", "binlog.000003", 500)], EndKind.SET_BACK)


def test_a_server_set_back_twice_is_not_followed_by_numbers_that_stand_for_other_transactions() -> None:
    lost = Kept("1", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-30"), 30)
    other = Kept("2", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-30"), 100)
    later = Kept("3", 3, gtids(f"{A}:1-30"), gtids(f"{A}:31-40"), 200)
    point = replace(at(33, f"{A}:1-23", "binlog.000003"), fingerprint="1 3")
    files = [headed(file) for file in (own(1), own(2), lost, other, later)]
    assert names(point, files) == ([("1", "binlog.000003", 500)], EndKind.SET_BACK)


@pytest.mark.parametrize("number", [2, 3])
def test_the_clock_of_a_server_with_one_history_does_not_decide_whether_a_backup_is_followed(number: int) -> None:
    """The clock was ahead when the server began the file."""
    files = [own(1), own(2), own(3), own(4)]
    files[number - 1] = own(number, 5000)
    point = at(25, f"{A}:1-{10 * number - 5}", f"binlog.{number:06d}")
    route = follow(point, files)
    assert (route.files, route.start, route.end) == (tuple(files[number - 1 :]), 500, NEWEST)


def test_after_a_reset_the_clock_and_the_gtids_refuse_a_later_file_of_the_same_name() -> None:
    again = [own(number, 1000 + 10 * number, incarnation="2") for number in (1, 2)]
    assert follow(POINT, [own(1), *again]).files == ()
    assert follow(POINT, again).files == ()
    assert follow(at(25, f"{A}:1-500"), [own(2, 1000)]).files == ()


def test_an_archive_that_begins_after_a_backup_continues_it_if_it_begins_at_its_gtids() -> None:
    first = Kept("1", 5, gtids(f"{A}:1-200"), gtids(f"{A}:201-210"), 35)
    point = at(25, f"{A}:1-200", "binlog.000004")
    route = follow(point, [first])
    assert (route.files, route.start, route.is_start_exact, route.end) == ((first,), 100, True, NEWEST)
    assert follow(at(25, f"{A}:1-199", "binlog.000004"), [first]).files == ()
    again = Kept("2", 5, gtids(f"{A}:1-200"), gtids(f"{A}:201-220"), 135)
    assert follow(point, [first, again]).files == ()


def test_a_backup_whose_gtids_are_in_several_files_is_followed_from_the_newest_it_contains() -> None:
    """A replica may write the transactions of several sources in another order than the server of the backup."""
    files = [
        Kept("1", 7, gtids(f"{B}:1-5"), gtids(f"{A}:1-10,{B}:6"), 10, B),
        Kept("1", 8, gtids(f"{A}:1-10,{B}:1-6"), gtids(f"{A}:11-20"), 20, B),
    ]
    point = at(30, f"{A}:1-12,{B}:1-5")
    assert names(point, files)[0] == [("1", "binlog.000007", 100), ("1", "binlog.000008", 100)]
    repeated = Kept("2", 1, GtidSet(), gtids(f"{A}:1-3"), 100)
    earlier = Kept("0", 1, GtidSet(), gtids(f"{A}:1-3"), 1)
    assert follow(point, [earlier, *files, repeated]).files == ()


def test_a_fail_back_to_a_server_whose_history_goes_on_is_not_promised_as_the_newest() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B)
    back = Kept("1", 3, gtids(f"{A}:1-20,{B}:1-10"), gtids(f"{A}:21-30"), 50)
    route = follow(at(35, f"{A}:1-20,{B}:1-3", "binlog.000077", server=B), [own(1), own(2), back, taken_over])
    assert (route.files, route.end.kind) == ((taken_over,), EndKind.UNPROVEN_FAILOVER)
    assert "continues to binlog.000003" in route.end.reason


def test_a_server_that_took_over_with_transactions_without_gtids_proves_nothing() -> None:
    anonymous = Kept("2", 6, gtids(f"{A}:1-18"), None, 25, B, is_anonymous=True)
    taken_over = Kept("2", 7, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B)
    route = follow(POINT, [own(1), own(2), anonymous, taken_over])
    assert ([file.incarnation for file in route.files], route.end.kind) == (["1"], EndKind.UNPROVEN_FAILOVER)


def plain(number: int, incarnation: str = "1", rotated: bool = True) -> Kept:
    """A file of a server without GTIDs."""
    return Kept(incarnation, number, GtidSet(), None, 10 * number, is_anonymous=True, is_rotated=rotated)


def test_without_gtids_the_files_follow_by_number_within_one_history_only() -> None:
    point = BackupPoint("b", 25 * SECOND, 25 * SECOND, A, BinlogCoordinates("binlog.000002", 500), None, Flavour.MYSQL)
    route = follow(point, [plain(1), plain(2), plain(3), plain(4, "2")])
    assert ([file.number for file in route.files], route.end.kind) == ([2, 3], EndKind.SET_BACK)
    route = follow(point, [plain(2), plain(4)])
    assert ([file.number for file in route.files], route.end.kind) == ([2], EndKind.GAP)
    assert "between binlog.000002 and number 4" in route.end.reason
    route = follow(point, [plain(2, rotated=False), plain(3)])
    assert ([file.number for file in route.files], route.end.kind) == ([2], EndKind.GAP)


def position(number: int, server: int = 1) -> GtidPosition:
    return GtidPosition({0: (server, number)})


@pytest.mark.parametrize(
    ("before", "incarnations", "kind"),
    [
        (position(20), ["1", "2"], EndKind.NEWEST),
        (position(18), ["1"], EndKind.UNPROVEN_FAILOVER),
        (position(20, 2), ["1"], EndKind.UNPROVEN_FAILOVER),
    ],
)
def test_of_mariadb_another_server_takes_over_only_in_a_file_that_begins_exactly_there(
    before: GtidPosition, incarnations: list[str], kind: EndKind
) -> None:
    """A position does not show whether the transactions up to it are the same transactions."""
    one, two = "server_id 1", "server_id 2"
    files = [
        Kept("1", 2, position(10), position(20), 20, one),
        Kept("2", 7, before, position(30, 2), 30, two),
    ]
    point = BackupPoint(
        "b", 25 * SECOND, 25 * SECOND, one, BinlogCoordinates("binlog.000002", 500), position(15), Flavour.MARIADB
    )
    route = follow(point, files)
    assert ([file.incarnation for file in route.files], route.end.kind) == (incarnations, kind)


def test_of_mariadb_another_server_that_forgot_a_domain_takes_over_if_it_never_uses_it_again() -> None:
    one, two = "server_id 1", "server_id 2"
    before = Kept("1", 2, GtidPosition.parse("0-1-10,5-1-3"), position(20), 20, one)
    point = BackupPoint(
        "b",
        25 * SECOND,
        25 * SECOND,
        one,
        BinlogCoordinates("binlog.000002", 500),
        GtidPosition.parse("0-1-15,5-1-3"),
        Flavour.MARIADB,
    )
    for own_gtids, count in (("0-2-30", 2), ("0-2-30,5-1-3", 1)):
        after = Kept("2", 7, position(20), GtidPosition.parse(own_gtids), 30, two)
        assert len(follow(point, [before, after]).files) == count


def test_mariadb_may_forget_a_domain_between_files_and_nothing_else() -> None:
    one = Kept("1", 1, GtidPosition(), GtidPosition.parse("0-1-10,5-1-3"), 10)
    assert missing_between(one, 2, GtidPosition.parse("0-1-10")) is None
    assert missing_between(one, 2, GtidPosition.parse("0-1-11,5-1-3")) is not None
    assert missing_between(one, 3, GtidPosition.parse("0-1-10,5-1-3")) is None


AHEAD = [
    Kept("1", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-20"), 20, fingerprint="old"),
    Kept("2", 1, GtidSet(), gtids(f"{A}:1-10"), 1000, fingerprint="first"),
    Kept("2", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-20"), 1010, fingerprint="second"),
    Kept("2", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-30"), 960, fingerprint="third"),
]
"""After a reset the clock of the server is set back while it writes its second file."""


def test_a_backup_right_after_the_clock_was_set_back_is_found_by_the_head_of_its_binlog() -> None:
    """By its clock it was made before the server began the binlog, so name, GTIDs and clock do not find it."""
    point = at(950, f"{A}:1-15")
    assert names(point, AHEAD)[0] != [("2", "binlog.000002", 500), ("2", "binlog.000003", 100)]
    known = replace(point, fingerprint="second")
    assert names(known, AHEAD) == ([("2", "binlog.000002", 500), ("2", "binlog.000003", 100)], EndKind.NEWEST)


def test_a_backup_is_not_found_in_a_binlog_with_another_head() -> None:
    """Its own binlog was not archived before the reset. Later binlogs fit it in name, number, GTIDs and clock."""
    again = [own(number, 20 + number, incarnation="2") for number in (1, 2, 3)]
    point = replace(at(1000, f"{A}:1-15"), fingerprint="not archived")
    assert follow(replace(point, fingerprint=None), [own(1), *again]).files != ()
    assert follow(replace(point, gtids=None), [own(1), *again]).end == NOT_ARCHIVED


def test_a_backup_of_a_binlog_that_is_archived_twice_begins_in_the_newest_history_that_has_its_position() -> None:
    whole = Kept("1", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-20"), 20, fingerprint="second")
    cut = Kept("2", 2, gtids(f"{A}:1-10"), gtids(f"{A}:11-15"), 20, end=500, size=500, fingerprint="second")
    files = [whole, cut, Kept("2", 3, gtids(f"{A}:1-15"), gtids(f"{A}:16-30"), 100, fingerprint="third")]
    for text, offset, expected in ((f"{A}:1-13", 300, "2"), (f"{A}:1-18", 700, "1")):
        point = replace(at(25, text, "binlog.000002", offset), fingerprint="second")
        assert {place[0] for place in names(point, files)[0]} == {expected}


def test_a_backup_with_the_head_of_its_binlog_is_followed_beyond_a_rename() -> None:
    files = [own(1), replace(own(2), fingerprint="second"), own(3, rotated=False)]
    again = [replace(file, incarnation="2", base="other") for file in (*files, own(4))]
    point = replace(at(25, f"{A}:1-15"), fingerprint="second")
    route = follow(point, [*files, *again])
    assert ([file.name for file in route.files], route.end) == ([f"other.00000{n}" for n in (2, 3, 4)], NEWEST)
