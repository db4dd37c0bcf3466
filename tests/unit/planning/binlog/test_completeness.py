"""A time after the last commit can be restored exactly if the archive is known to be complete until then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import SECOND, A, B, Kept, at, gtids, own
from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.base.errors import NotFound
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.planning.binlog.archive_times import (
    CommitHorizon,
    LastRecord,
    RoundTimer,
    is_reached,
    is_worth_recording,
    least_limit,
    record_interval,
)
from zsnapdb.planning.binlog.recoverable_ranges import window
from zsnapdb.planning.binlog.route import commit_time, follow
from zsnapdb.planning.binlog.route_elements import ArchiveState, CompleteUntil, EndKind
from zsnapdb.planning.restore.point_forms import AtTime
from zsnapdb.planning.restore.route_choice import choose

POINT = at(25, f"{A}:1-15")
FILES = [own(1), own(2), own(3, rotated=False)]
"""The last commit is at second 39."""
QUIET = CompleteUntil("1", "binlog.000003", 1000, 70 * SECOND)
NOW = commit_time(1000 * SECOND)


def known(*records: CompleteUntil) -> ArchiveState:
    return ArchiveState(complete=records)


def test_a_time_on_a_quiet_server_is_its_last_commit() -> None:
    chosen = choose(AtTime(commit_time(60 * SECOND)), [POINT], FILES, NOW, known(QUIET))
    assert ([file.number for file in chosen.files], chosen.route.to) == ([2, 3], 70 * SECOND)
    (part,) = window([POINT], FILES, known(QUIET)).ranges
    assert (part.start, part.end) == (25 * SECOND, 70 * SECOND)
    with pytest.raises(NotFound, match="after the end of the archive, which is at 1970-01-01 00:01:10 UTC"):
        choose(AtTime(commit_time(71 * SECOND)), [POINT], FILES, NOW, known(QUIET))
    with pytest.raises(NotFound, match="after the end of the archive, which is at 1970-01-01 00:00:39 UTC"):
        choose(AtTime(commit_time(60 * SECOND)), [POINT], FILES, NOW)


def test_a_backup_after_which_nothing_was_committed_leads_to_later_times() -> None:
    point = at(45, f"{A}:1-30", "binlog.000003", 1000)
    chosen = choose(AtTime(commit_time(60 * SECOND)), [point], FILES, NOW, known(QUIET))
    assert (chosen.point, chosen.route.start) == (point, 1000)


@pytest.mark.parametrize(
    "record",
    [
        replace(QUIET, end=1001),
        replace(QUIET, name="binlog.000004"),
        replace(QUIET, name="other.000003"),
        replace(QUIET, incarnation="2"),
        replace(QUIET, until=30 * SECOND),
    ],
)
def test_a_record_of_a_place_that_the_archive_does_not_reach_says_nothing(record: CompleteUntil) -> None:
    assert follow(POINT, FILES, known(record)).to == 39 * SECOND


def test_what_was_promised_stays_promised_when_more_is_archived() -> None:
    rotated = [own(1), own(2), own(3), Kept("1", 4, gtids(f"{A}:1-30"), None, 80, is_rotated=False, end=100)]
    assert follow(POINT, rotated, known(QUIET)).to >= 70 * SECOND
    assert follow(POINT, rotated, known(replace(QUIET, until=200 * SECOND))).to == 200 * SECOND


def test_a_record_behind_a_gap_says_nothing_about_the_time_before_it() -> None:
    files = [own(1), own(2), own(4, rotated=False)]
    record = CompleteUntil("1", "binlog.000004", 1000, 70 * SECOND)
    assert (follow(POINT, files, known(record)).to, follow(POINT, files).end.kind) == (29 * SECOND, EndKind.GAP)


def test_an_old_server_says_nothing_after_a_failover_that_lost_transactions() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{B}:1-10"), 30, B)
    record = CompleteUntil("1", "binlog.000002", 1000, 70 * SECOND)
    route = follow(POINT, [own(1), own(2), taken_over], known(record))
    assert (route.end.kind, route.to) == (EndKind.LOST_IN_FAILOVER, 29 * SECOND)


def test_after_a_failover_the_old_servers_record_says_nothing_about_the_new_server() -> None:
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{A}:19-20,{B}:1-10"), 30, B, base="mysql-bin")
    record = CompleteUntil("1", "binlog.000002", 1000, 70 * SECOND)
    assert follow(POINT, [own(1), own(2), taken_over], known(record)).to == 39 * SECOND


def test_the_horizon_of_a_server_is_reached_by_number_and_offset_and_never_by_another_name() -> None:
    horizon = CommitHorizon(70 * SECOND, BinlogCoordinates("binlog.000009", 500))
    reached = {
        ("binlog.000009", 500): True,
        ("binlog.000009", 499): False,
        ("binlog.000010", 4): True,
        ("binlog.000008", 900): False,
        ("other.000010", 900): False,
    }
    assert {place: is_reached(horizon, BinlogCoordinates(*place)) for place in reached} == reached
    assert not is_reached(horizon, None)


def test_a_record_is_written_at_once_and_then_once_an_interval_while_nothing_new_comes() -> None:
    now, last = 100 * SECOND, 90 * SECOND
    assert is_worth_recording(None, now, 20.0, None)
    assert is_worth_recording(None, now, 20.0, now)
    assert not is_worth_recording(LastRecord(last, 19.0), now, 20.0, None)
    assert is_worth_recording(LastRecord(last, 20.0), now, 20.0, None)
    assert not is_worth_recording(LastRecord(last, 20.0), now, 20.0, 81 * SECOND)


def test_rotations_without_commits_and_commits_of_old_times_put_no_record_off() -> None:
    """A binlog that is rotated in each round, and a replica that is an hour late, archive something in each round."""
    assert is_worth_recording(LastRecord(90 * SECOND, 20.0), 100 * SECOND, 20.0, 80 * SECOND)
    assert is_worth_recording(LastRecord(9000 * SECOND, 20.0), 9020 * SECOND, 20.0, 5400 * SECOND)


def test_a_record_is_replaced_at_once_if_the_clock_of_the_server_was_set_back() -> None:
    assert is_worth_recording(LastRecord(110 * SECOND, 1.0), 100 * SECOND, 60.0, 100 * SECOND)


@given(lag=st.floats(5, 90000) | st.none(), rpo=st.floats(5, 90000) | st.none(), warn_at=st.floats(0.1, 1))
@example(lag=60.0, rpo=None, warn_at=0.8)
def test_a_quiet_server_gets_no_warning_within_limits_that_can_be_kept(
    lag: float | None, rpo: float | None, warn_at: float
) -> None:
    objectives = ObjectiveSettings(archive_lag=lag, rpo=rpo, warn_at=warn_at)
    limits, interval = [limit for limit in (lag, rpo) if limit is not None], record_interval(objectives)
    assert interval <= min([60.0, *(limit / 3 for limit in limits)])
    round_interval, rounding = 10.0, 2.0
    if all(limit >= least_limit(objectives, round_interval) for limit in limits):
        assert all(interval + round_interval + rounding <= limit * warn_at for limit in limits)


def test_a_server_from_which_another_one_took_over_does_not_say_that_nothing_was_committed() -> None:
    """The old server was cut off, and its archiver still ran, when the new server committed."""
    taken_over = Kept("2", 77, gtids(f"{A}:1-18"), gtids(f"{B}:1-10"), 30, B, base="mysql-bin")
    record = CompleteUntil("1", "binlog.000002", 1000, 70 * SECOND)
    files = [own(1), own(2), taken_over]
    with pytest.raises(NotFound, match="after the end of the archive"):
        choose(AtTime(commit_time(35 * SECOND)), [POINT], files, NOW, known(record))
    named = choose(AtTime(commit_time(35 * SECOND)), [POINT], files, NOW, known(record), history="1")
    assert [file.number for file in named.files] == [2]


@given(interval=st.floats(1, 86400), rounds=st.lists(st.floats(0, 10), max_size=20), last=st.floats(0, 30))
def test_round_stores_each_commit_within_the_interval(interval: float, rounds: list[float], last: float) -> None:
    timer = RoundTimer(interval)
    for seconds in rounds:
        timer = timer.after(seconds)
    last = min(last, 3 * timer.slowest, interval / 2)
    # A commit right after the start of a round is stored by the end of the next one.
    assert timer.pause + last <= interval * (1 + 1e-9)
    assert interval / 2 <= timer.pause <= 0.8 * interval


@pytest.mark.parametrize(("interval", "slow", "pause"), [(1, 0, 0.5), (10, 0, 7.5), (10, 2, 5), (60, 6, 42)])
def test_round_starts_as_late_as_the_interval_allows(interval: float, slow: float, pause: float) -> None:
    assert RoundTimer(interval).after(slow).pause == pytest.approx(pause)
