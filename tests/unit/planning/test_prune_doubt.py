"""A clock that is far from the store's or the newest backup's is not trusted to say how old backups are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from zsnapdb.planning.clock_guard import RemovalTime

NOW = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)
DAILY = [NOW - DAY * age for age in range(30, 0, -1)]


@pytest.mark.parametrize(
    ("now", "store", "backups", "reason"),
    [
        (NOW, NOW, DAILY, ""),
        (NOW, None, DAILY, ""),
        (NOW + DAY, None, DAILY, ""),
        (NOW + 365 * DAY, None, DAILY, "the newest backup"),
        (NOW + 365 * DAY, NOW, [], "the clock of the store"),
        (NOW + 365 * DAY, NOW + 365 * DAY, DAILY, ""),
        (NOW - 2 * DAY, NOW, DAILY, "the clock of the store"),
        (NOW, NOW, DAILY[:-6:7], ""),
        (NOW + 5 * DAY, None, [NOW - 14 * DAY, NOW - 7 * DAY, NOW], ""),
        (NOW, None, [*DAILY, NOW + 2 * DAY], ""),
        (NOW + 365 * DAY, None, DAILY[:1], ""),
    ],
)
def test_a_clock_is_doubted_if_it_is_more_than_a_day_from_what_else_is_known(
    now: datetime, store: datetime | None, backups: list[datetime], reason: str
) -> None:
    doubt = RemovalTime(now, now).prune_doubt(store, backups)
    assert reason in doubt
    assert bool(doubt) == bool(reason)
