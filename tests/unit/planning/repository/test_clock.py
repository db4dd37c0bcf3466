"""A clock that is far from the store's or the newest backup's is not trusted to say how old backups are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from zsnapdb.planning.repository.clock import ClockDoubtKind, clock_doubt

NOW = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)
DAILY = [NOW - DAY * age for age in range(30, 0, -1)]


@pytest.mark.parametrize(
    ("now", "store", "backups", "kind"),
    [
        (NOW, NOW, DAILY, None),
        (NOW, None, DAILY, None),
        (NOW + DAY, None, DAILY, None),
        (NOW + 365 * DAY, None, DAILY, ClockDoubtKind.NEWEST_BACKUP),
        (NOW + 365 * DAY, NOW, [], ClockDoubtKind.STORE),
        (NOW + 365 * DAY, NOW + 365 * DAY, DAILY, None),
        (NOW - 2 * DAY, NOW, DAILY, ClockDoubtKind.STORE),
        (NOW, NOW, DAILY[:-6:7], None),
        (NOW + 5 * DAY, None, [NOW - 14 * DAY, NOW - 7 * DAY, NOW], None),
        (NOW, None, [*DAILY, NOW + 2 * DAY], None),
        (NOW + 365 * DAY, None, DAILY[:1], None),
    ],
)
def test_a_clock_is_doubted_if_it_is_more_than_a_day_from_what_else_is_known(
    now: datetime, store: datetime | None, backups: list[datetime], kind: ClockDoubtKind | None
) -> None:
    doubt = clock_doubt(now, store, backups)
    assert (doubt.kind if doubt is not None else None) == kind
