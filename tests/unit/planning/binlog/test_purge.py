"""A binlog is removed from the server only if it is completely archived, old enough, and fetched by every replica."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import Kept
from zsnapdb.base.domain_types import Flavour
from zsnapdb.jobs.binlog.purge import expiry_of
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.binlog.purge import DumpConnection, Expiry, PurgePlan, ages_of, batches, plan_purge
from zsnapdb.planning.clock_guard import RemovalTime

LOCAL = [ServerBinlog(f"binlog.{n:06d}", n, 1000, f"f{n}") for n in range(1, 6)]
KEPT = [Kept("1", n, None, None, n, fingerprint=f"f{n}") for n in range(1, 5)]
AGES = [500.0, 400.0, 300.0, 200.0, 1.0]
NONE = Expiry(0)
ALL = ("binlog.000001", "binlog.000002", "binlog.000003", "binlog.000004")


def plan(
    kept: list[Kept] = KEPT,
    dumps: tuple[DumpConnection, ...] = (),
    keep: float = 0.0,
    replicas: int = 0,
    expiry: Expiry = NONE,
) -> PurgePlan:
    return plan_purge(LOCAL, AGES, kept, dumps, expiry, keep=keep, replicas=replicas)


def test_all_but_the_one_that_is_written_to_may_go() -> None:
    assert plan().names == ALL


def test_the_first_that_is_not_archived_whole_stops_it() -> None:
    active = Kept("1", 3, None, None, 3, fingerprint="f3", is_rotated=False)
    other = Kept("1", 3, None, None, 3, fingerprint="another")
    shorter = Kept("1", 3, None, None, 3, fingerprint="f3", size=999)
    for third in ([], [active], [other], [shorter]):
        purge = plan([*KEPT[:2], *third, KEPT[3]])
        assert (purge.names, "binlog.000003" in purge.stays) == (ALL[:2], True)


def test_the_first_whose_archived_copy_is_damaged_stops_it() -> None:
    purge = plan_purge(
        LOCAL, AGES, KEPT, (), NONE, keep=0.0, replicas=0, damaged={"binlog.000003": "a chunk is missing"}
    )
    assert purge.names == ALL[:2]
    assert purge.stays == "the archived copy of binlog.000003 is damaged: a chunk is missing"


def test_young_ones_stay() -> None:
    assert plan(keep=350).names == ALL[:2]


def test_a_replica_that_has_not_fetched_everything_or_is_away_stops_it() -> None:
    assert plan(dumps=(DumpConnection("r1", True),), replicas=1).names == ALL
    assert plan(dumps=(DumpConnection("r1", True), DumpConnection("r2", False))).names == ()
    assert plan(dumps=(DumpConnection("r1", True),), replicas=2).names == ()


def test_it_warns_where_the_server_removes_binlogs_by_itself() -> None:
    assert plan().warnings == ()
    assert "has no effect" in plan(expiry=Expiry(100), keep=100).warnings[0]
    assert "has no effect" not in plan(expiry=Expiry(101), keep=100).warnings[0]
    assert "max_binlog_total_size" in plan(expiry=Expiry(0, 5)).warnings[0]


@pytest.mark.parametrize(
    ("flavour", "variables", "expiry"),
    [
        (
            Flavour.MYSQL,
            {"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "ON"},
            Expiry(2592000),
        ),
        (Flavour.MYSQL, {"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "OFF"}, Expiry(0)),
        (Flavour.MYSQL, {"expire_logs_days": "3"}, Expiry(259200)),
        (
            Flavour.MARIADB,
            {"expire_logs_days": "0.5", "binlog_expire_logs_seconds": "0", "max_binlog_total_size": "7"},
            Expiry(43200, 7),
        ),
    ],
)
def test_the_expiry_is_what_the_server_says(flavour: Flavour, variables: dict[str, str], expiry: Expiry) -> None:
    assert expiry_of(flavour, variables) == expiry


@given(st.lists(st.text(), max_size=20), st.integers(1, 7))
def test_batches_are_small_and_leave_nothing_out(names: list[str], count: int) -> None:
    parts = batches(names, count)
    assert [name for batch in parts for name in batch] == names
    assert all(1 <= len(batch) <= count for batch in parts)


def test_binlog_written_under_a_wrong_clock_is_no_older_than_the_one_before() -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    hour, year = 3600.0, 365 * 86400.0
    written = [now.timestamp() - age for age in (5 * hour, year, 3 * hour, -year, 2 * hour, 0.0)]
    at_last = [3 * hour, 2 * hour, 2 * hour, 0.0]
    sure, new = RemovalTime(now, now), RemovalTime(now, now, is_new=True)
    assert ages_of(written, sure) == [5 * hour, 3 * hour, *at_last], "the second one is from before the third one"
    assert ages_of(written, new) == [5 * hour, 3 * hour, 3 * hour, -year, -year, -year]
    jumped = RemovalTime(now + timedelta(days=40), now, doubt="it jumped")
    assert ages_of(written, jumped)[0] == 5 * hour


def test_binlog_of_a_clock_that_was_behind_is_as_young_as_the_next() -> None:
    """The host was off for three days, and the third binlog was rotated before its clock was set."""
    now, hour, day = datetime(2026, 11, 20, tzinfo=UTC), 3600.0, 86400.0
    off = (now - timedelta(days=3), now - timedelta(hours=1))
    written = [now.timestamp() - age for age in (3 * day + hour, 3 * day + 60, 3 * day - hour, 60.0)]
    assert ages_of(written, RemovalTime(now, now, early=(off,)))[2:] == [60.0, 60.0]
    assert ages_of([*written[:2], 0.0, written[3]], RemovalTime(now, now))[2:] == [60.0, 60.0], "such as 1970"


@pytest.mark.parametrize("at", [-(10**15), -1.0, 10**12, 2.0**60])
def test_time_outside_of_the_calendar_makes_no_binlog_older(at: float) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    written = [now.timestamp() - 60, float(at), now.timestamp() - 30]
    assert ages_of(written, RemovalTime(now, now))[:2] in ([60.0, 30.0], [60.0, 60.0])
