"""`latest` leaves out no trusted transaction in silence: a history that a second writer continued refuses it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.unit.support.binlog_window import SECOND, A, B, Kept, at, gtids, own
from zsnapdb.base.errors import AmbiguousPointError, HistoryError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.planning.binlog.recoverable_ranges import window
from zsnapdb.planning.binlog.route import commit_time, follow
from zsnapdb.planning.binlog.route_elements import ArchiveState, EndKind
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition
from zsnapdb.planning.restore.newest_state_check import check_own_history
from zsnapdb.planning.restore.point_forms import AtTime, Latest
from zsnapdb.planning.restore.route_choice import RestoreRoute, choose

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GROWN = ArchiveState(grown=(("2", "1"),))
MAIN = [Kept(**{**vars(own(number)), "fingerprint": str(number)}) for number in (1, 2, 3)]
"""The history of server A: transactions 1 to 30."""
COPY = Kept("2", 3, gtids(f"{A}:1-20"), gtids(f"{A}:21-40"), 31, fingerprint="copy")
"""A copy of server A with other transactions under the same GTIDs."""
LOST = Kept("2", 7, gtids(f"{A}:1-15"), gtids(f"{B}:1-5"), 31, B, fingerprint="lost")
"""Another server that has the transactions 1 to 15 of server A."""
WITHOUT = [replace(file, is_anonymous=True, previous=GtidSet(), gtids=None) for file in (*MAIN, COPY)]


@pytest.mark.parametrize(
    ("files", "server", "text"),
    [([*MAIN, COPY], A, f"{A}:1-25"), ([*MAIN, LOST], B, f"{A}:1-15,{B}:1-2"), (WITHOUT, A, "")],
    ids=["a copy with the same UUID", "another server", "without GTIDs"],
)
def test_history_that_a_second_writer_continued_refuses_latest(files: list[Kept], server: str, text: str) -> None:
    last = files[-1]
    points = [
        replace(at(25, f"{A}:1-15"), fingerprint="2"),
        replace(at(35, text, last.name, server=server, name="n"), fingerprint=last.fingerprint),
    ]
    if not text:
        points = [replace(point, gtids=None) for point in points]
    assert choose(Latest(), points, files, NOW).files[-1] == last
    with pytest.raises(HistoryError, match=r"in history 1, up to binlog\.000003, after history 2") as refused:
        choose(Latest(), points, files, NOW, GROWN)
    assert refused.value.exit_code == 7
    assert "`--history 1` or `--history 2`" in refused.value.hint
    unprotected = window(points, files, GROWN).unprotected
    assert unprotected is not None
    assert (unprotected.kind, unprotected.other) == (EndKind.SECOND_WRITER, "1")
    assert choose(Latest(accepts_older=True), points, files, NOW, GROWN).files[-1] == last
    for history, end in (("1", MAIN[-1].name), ("2", last.name)):
        assert choose(Latest(), points, files, NOW, GROWN, history).files[-1].name == end


def test_time_in_the_histories_of_a_server_and_its_copy_is_refused() -> None:
    """Both servers commit until second 39. No route leads from the newest backup into the copy's history."""
    files = [*MAIN, COPY]
    points = [
        replace(at(25, f"{A}:1-15"), fingerprint="2"),
        replace(at(35, f"{A}:1-25", "binlog.000003"), fingerprint="3"),
    ]
    target = AtTime(commit_time(36 * SECOND))
    with pytest.raises(AmbiguousPointError, match=r"lies in 2 histories .*1 \(in binlog.*2 \(in binlog") as refused:
        choose(target, points, files, NOW)
    assert refused.value.exit_code == 2
    for history, end in (("1", MAIN[-1]), ("2", COPY)):
        assert choose(target, points, files, NOW, history=history).files[-1] == end
    assert choose(AtTime(commit_time(27 * SECOND)), points, files, NOW).files[-1] == MAIN[1]


def test_replica_that_archives_after_its_source_does_not_refuse_latest() -> None:
    source = Kept("2", 7, gtids(f"{A}:1-30"), gtids(f"{B}:1-5"), 41, B, fingerprint="b")
    point = replace(at(45, f"{A}:1-30,{B}:1-2", source.name, server=B), fingerprint="b")
    assert choose(Latest(), [point], [*MAIN, source], NOW, GROWN).files == (source,)


@pytest.mark.parametrize(
    ("other", "begun", "is_refused"),
    [
        (COPY, {"1"}, True),
        (COPY, {"1", "2"}, False),
        (replace(COPY, incarnation="1"), {"1"}, False),
        (replace(COPY, fingerprint="3", end=MAIN[-1].end), {"1"}, False),
        (replace(COPY, fingerprint="3", end=MAIN[-1].end - 1), {"1"}, True),
        (LOST, {"1"}, False),
    ],
    ids=["other binlog", "own history", "same history", "same binlog", "shorter binlog", "another server"],
)
def test_latest_without_what_this_host_archived_is_refused(other: Kept, begun: set[str], is_refused: bool) -> None:
    position = ArchivedPosition(incarnation="20261130T120000Z-0001", file=MAIN[-1].name, end=MAIN[-1].end)
    position = position.model_copy(update={"incarnation": "1"})
    choice = RestoreRoute(Latest(), follow(at(25, "", other.name), (other,)), (other,), None)
    choice = replace(choice, route=replace(choice.route, files=(other,)))
    check_own_history(choice, None, [*MAIN, other], begun)
    with (
        pytest.raises(HistoryError, match=r"history 2 .* that this host archived in history 1")
        if is_refused
        else nullcontext()
    ):
        check_own_history(choice, position, [*MAIN, other], begun)
    through = replace(choice, route=replace(choice.route, files=(MAIN[-1], other)))
    check_own_history(through, position, [*MAIN, other], begun)
