"""A point that lies in several histories of a server is refused until one of them is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.unit.support.binlog_window import SECOND, A, B, Kept, at, gtids, own
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.errors import HistoryError, NotFound, PreflightError
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.planning.binlog.route import BackupPoint, commit_time
from zsnapdb.planning.restore.point_forms import AtGtids, AtTime, Latest, Target
from zsnapdb.planning.restore.route_choice import RestoreRoute, choose

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ONE = "server_id 1"


def head(number: int) -> GtidPosition:
    return GtidPosition({0: (1, number)})


def maria(incarnation: str, number: int, first: int, last: int, created: int, **more: object) -> Kept:
    """A file of MariaDB with transactions 0-1-FIRST to 0-1-LAST, committed from `created` on for 10 seconds."""
    return Kept(
        incarnation,
        number,
        head(first - 1),
        head(last),
        created,
        ONE,
        fingerprint=f"{number} {created}",
        **more,  # type: ignore[arg-type]
    )


POINT = BackupPoint(
    "b", 25 * SECOND, 25 * SECOND, ONE, BinlogCoordinates("binlog.000002", 500), head(15), Flavour.MARIADB
)
SET_BACK = [
    maria("1", 1, 1, 10, 10),
    maria("1", 2, 11, 20, 20),
    maria("1", 3, 21, 28, 30, is_rotated=False),
    maria("2", 3, 21, 29, 100),
]
"""The server was set back to the end of its second file, and began another third file at second 100."""
CUT = [
    maria("1", 1, 1, 10, 10),
    maria("1", 2, 11, 28, 20, is_rotated=False),
    maria("2", 2, 11, 15, 20, end=500, size=500),
    maria("2", 3, 16, 29, 100),
]
"""The server was set back to the snapshot of the backup: its second file is archived twice, once cut."""


def place(target: Target, files: list[Kept], history: str | None = None) -> tuple[str, int]:
    chosen: RestoreRoute = choose(target, [POINT], files, NOW, history=history)
    return chosen.files[-1].incarnation, chosen.files[-1].number


def time(second: float) -> AtTime:
    return AtTime(commit_time(round(second * SECOND)))


@pytest.mark.parametrize("second", [31, 38, 60, 99])
def test_a_time_after_the_split_is_refused_and_names_both_histories(second: int) -> None:
    with pytest.raises(
        HistoryError, match=r"lies in 2 histories .* 2 \(in binlog\.000002.*1 \(in binlog\.000003"
    ) as no:
        place(time(second), SET_BACK)
    assert "--history" in no.value.hint
    assert place(time(second), SET_BACK, "2") == ("1", 2)


def test_a_named_history_leads_to_its_own_state() -> None:
    assert place(time(38), SET_BACK, "1") == ("1", 3)
    assert place(time(105), SET_BACK, "2") == ("2", 3)
    assert place(Latest(), SET_BACK, "1") == ("1", 3)
    with pytest.raises(NotFound, match="after the end of the archive"):
        place(time(99), SET_BACK, "1")
    with pytest.raises(NotFound, match="has no history 7"):
        place(time(38), SET_BACK, "7")


@pytest.mark.parametrize("second", [26, 29])
def test_a_time_before_the_split_needs_no_history(second: int) -> None:
    assert place(time(second), SET_BACK) == ("1", 2)


def test_a_time_in_the_newest_history_alone_needs_no_history() -> None:
    assert place(time(105), SET_BACK) == ("2", 3)
    assert place(time(105), CUT) == ("2", 3)


def test_a_file_that_was_cut_is_the_same_state_up_to_its_end_alone() -> None:
    short = [*CUT[:2], Shortened(**{**vars(CUT[2]), "last": 27}), CUT[3]]
    assert place(time(26), short) == ("2", 2)
    with pytest.raises(HistoryError, match="2 histories"):
        place(time(28), short)


class Shortened(Kept):
    """A file whose last transaction was committed at second `last`."""

    def __init__(self, last: int, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        object.__setattr__(self, "last", last)

    @property
    def last_commit(self) -> int | None:
        return self.last * SECOND  # type: ignore[attr-defined, no-any-return]


def test_a_gtid_of_mariadb_that_two_histories_gave_to_two_transactions_is_refused() -> None:
    with pytest.raises(HistoryError, match="0-1-25 lies in 2 histories"):
        place(AtGtids("0-1-25"), SET_BACK)
    assert place(AtGtids("0-1-25"), SET_BACK, "1") == ("1", 3)
    assert place(AtGtids("0-1-18"), SET_BACK) == ("1", 2)


def test_on_mysql_the_gtids_of_an_abandoned_history_are_found() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{B}:1-10"), 30, B, fingerprint="b")
    first, second = (Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2))
    old = at(25, f"{A}:1-15")
    new = at(45, f"{A}:1-18,{B}:1-10", "binlog.000077", 1000, B, "n")
    chosen = choose(AtGtids(f"{A}:20"), [old, new], [first, second, taken_over], NOW)
    assert (chosen.point, chosen.files) == (old, (second,))
    with pytest.raises(NotFound):
        choose(AtGtids(f"{A}:21"), [old, new], [first, second, taken_over], NOW)


def test_the_gtids_of_an_older_history_are_found_past_backups_of_a_server_without_gtids() -> None:
    first, second = (Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2))
    again = Kept("2", 1, None, None, 1000, fingerprint="again")
    old = at(25, f"{A}:1-15")
    within = replace(at(28, f"{A}:1-15", name="w"), gtids=None)
    new = replace(at(1001, f"{A}:1-3", "binlog.000001", 500, name="n"), gtids=None)
    chosen = choose(AtGtids(f"{A}:20"), [old, within, new], [first, second, again], NOW)
    assert (chosen.point, chosen.files) == (old, (second,))
    with pytest.raises(PreflightError, match="have no GTIDs"):
        choose(AtGtids(f"{A}:20"), [within, new], [first, second, again], NOW)


def test_after_a_reset_the_same_gtids_are_refused_until_a_history_is_named() -> None:
    before = [Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2, 3)]
    again = Kept("2", 1, GtidSet(), gtids(f"{A}:1-40"), 1000, fingerprint="again")
    points = [
        replace(at(25, f"{A}:1-15"), fingerprint="2"),
        replace(at(1001, f"{A}:1-3", "binlog.000001", 500, name="n"), fingerprint="again"),
    ]
    files = [*before, again]
    with pytest.raises(HistoryError, match="lies in 2 histories"):
        choose(AtGtids(f"{A}:1-25"), points, files, NOW)
    assert choose(AtGtids(f"{A}:1-25"), points, files, NOW, history="1").point is points[0]
    assert choose(AtGtids(f"{A}:1-25"), points, files, NOW, history="2").point is points[1]


AFTER_A_LOSS = [
    maria("1", 1, 1, 10, 10),
    maria("1", 2, 11, 28, 20),
    Kept("2", 1, head(15), GtidPosition({0: (2, 29)}), 100, "server_id 2", fingerprint="2"),
]
"""Server 2 took over at 0-1-15, and gave the numbers 16 to 29 to other transactions."""
TAKEN_OVER = BackupPoint(
    "n",
    101 * SECOND,
    101 * SECOND,
    "server_id 2",
    BinlogCoordinates("binlog.000001", 300),
    GtidPosition({0: (2, 17)}),
    Flavour.MARIADB,
)


@pytest.mark.parametrize(("gtid", "history"), [("0-1-25", "1"), ("0-2-25", "2")])
def test_a_gtid_of_mariadb_that_one_history_alone_has_needs_no_history(gtid: str, history: str) -> None:
    """By their positions both histories seem to have each number. Only their transactions tell whose it is."""

    def holds(choice: RestoreRoute) -> bool:
        server = "server_id 2" if gtid.startswith("0-2") else ONE
        return choice.files[-1].server == server

    points = [POINT, TAKEN_OVER]
    with pytest.raises(HistoryError, match="lies in 2 histories"):
        choose(AtGtids(gtid), points, AFTER_A_LOSS, NOW)
    assert choose(AtGtids(gtid), points, AFTER_A_LOSS, NOW, holds=holds).files[-1].incarnation == history


def test_a_time_between_two_histories_is_refused_with_what_can_be_restored_of_the_named_one() -> None:
    """After a reset at second 1000, nothing says what the server committed from second 40 to then."""
    before = [Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2, 3)]
    files = [*before, Kept("2", 1, GtidSet(), gtids(f"{A}:1-40"), 1000, fingerprint="again")]
    points = [
        replace(at(25, f"{A}:1-15"), fingerprint="2"),
        replace(at(1001, f"{A}:1-3", "binlog.000001", 500, name="n"), fingerprint="again"),
    ]
    with pytest.raises(NotFound, match="after the end of the archive") as no:
        choose(time(500), points, files, NOW, history="1")
    assert "`--to latest --history 1` restores" in no.value.hint
    assert choose(Latest(), points, files, NOW, history="1").files[-1].number == 3
    with pytest.raises(NotFound, match="no backup is older"):
        choose(time(500), points, files, NOW, history="2")


def test_a_gtid_at_the_end_of_a_backup_that_an_archived_history_has_too_is_refused() -> None:
    """After a reset the new history is not archived yet, and its backup ends with a GTID that was given before."""
    files = [Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2, 3)]
    old = at(11, f"{A}:1-2", "binlog.000001", 200, name="o")
    new = at(1001, f"{A}:1-3", "binlog.000001", 500, name="n")
    known = replace(new, fingerprint="again", last_gtid=f"{A}:3")
    for target in (AtGtids(f"{A}:3"), AtGtids(f"{A}:1-3")):
        with pytest.raises(HistoryError, match="used the GTID twice") as no:
            choose(target, [old, known], files, NOW)
        assert "`--to n` restores the backup" in no.value.hint
        assert choose(target, [old, known], files, NOW, history="1").point == old
    lagging = replace(at(45, f"{A}:1-33", "binlog.000004", 400), fingerprint="4", last_gtid=f"{A}:33")
    assert choose(AtGtids(f"{A}:33"), [old, lagging], files, NOW).point == lagging


def test_a_time_before_a_history_in_which_the_same_server_goes_on_has_no_note() -> None:
    """The second history begins with the transaction that follows the last one of the first history."""
    files = [replace(own(number), fingerprint=str(number)) for number in (1, 2)]
    following = replace(own(3, created=60, incarnation="2"), fingerprint="3")
    points = [replace(at(12, f"{A}:1-3", "binlog.000001"), fingerprint="1")]
    assert choose(time(40), points, [*files, following], NOW).notes == ()
    (note,) = choose(time(40), points, [*files, replace(following, server=B)], NOW).notes
    assert f"any transactions that server {A} committed in between are not archived" in note
