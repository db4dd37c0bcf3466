"""Which binlogs a restore from the host describes: those that lead from a set before the point, and no older ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.restore.point_forms import AtGtids, AtTime, BeforeGtid, Latest
from zsnapdb.planning.restore.route_choice import SetOnHost, first_binlog

BEGAN = datetime(2026, 11, 20, 10, tzinfo=UTC)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SETS = [SetOnHost(BEGAN + timedelta(minutes=n), 10 + n, f"{UUID}:1-{100 * n + 100}") for n in range(6)]


def test_the_two_newest_sets_before_a_time_decide() -> None:
    assert first_binlog(SETS, AtTime(BEGAN + timedelta(minutes=3, seconds=30)), Flavour.MYSQL) == 12


def test_the_sets_that_lack_the_transaction_decide() -> None:
    for target in (BeforeGtid(f"{UUID}:301"), AtGtids(f"{UUID}:301")):
        assert first_binlog(SETS, target, Flavour.MYSQL) == 11


def test_the_newest_sets_decide_for_the_latest_state() -> None:
    assert first_binlog(SETS, Latest(), Flavour.MYSQL) == 14


def test_without_a_target_the_oldest_set_decides() -> None:
    assert first_binlog(SETS, None, Flavour.MYSQL) == 10


def test_a_set_whose_binlog_is_not_known_asks_for_all() -> None:
    assert first_binlog([SetOnHost(BEGAN, None, None)], Latest(), Flavour.MARIADB) == 0


@given(st.integers(-120, 600), st.lists(st.integers(0, 300), min_size=1, max_size=8, unique=True))
def test_the_newest_set_before_a_time_is_always_reached(second: int, made: list[int]) -> None:
    sets = [SetOnHost(BEGAN + timedelta(seconds=at), at, None) for at in sorted(made)]
    before = [at for at in sorted(made) if at <= second]
    first = first_binlog(sets, AtTime(BEGAN + timedelta(seconds=second)), Flavour.MARIADB)
    assert first <= (before or sorted(made))[-1]
