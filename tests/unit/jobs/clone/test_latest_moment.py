"""`latest` of a query is the end of the archive or the newest set on the host, whatever the clocks were."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.jobs.clone.query import Moment, MomentMatch, reaches_beyond
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestorePoint

OLD, NEWEST = "20261119T100000Z-0001", "20261119T110000Z-0002"
MADE = datetime(2026, 11, 19, 11, tzinfo=UTC)
SET = Moment("latest", NEWEST, MADE, "binlog.000002:800 0-1-20", MomentMatch.NEAREST)
MYSQL = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ERRORS = [timedelta(days=-400), timedelta(minutes=-20), timedelta(), timedelta(hours=7), timedelta(days=400)]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("base", "stands", "reached", "is_beyond"),
    [
        (NEWEST, "0-1-20", "0-1-30", True),
        (NEWEST, "0-1-20", None, False),
        (OLD, "0-1-20", "0-1-30", True),
        (OLD, "0-1-20", "0-1-15", False),
        (OLD, "0-1-20", "0-1-20", False),
        (OLD, f"{MYSQL}:1-20", f"{MYSQL}:1-30", True),
        (OLD, f"{MYSQL}:1-20", f"{MYSQL}:1-15", False),
    ],
)
def test_clock_does_not_decide_whether_the_archive_ends_after_the_newest_set(
    host: PlanningHost, error: timedelta, base: str, stands: str, reached: str | None, is_beyond: bool
) -> None:
    """`error` is how wrong the clock was when ZFS created the set. `reached` None: the plan replays nothing."""
    last = ArchivedTransaction(reached, MADE + timedelta(minutes=5), "binlog.000003", 900) if reached else None
    planned = replace(host.plan(), backup_id=base, point=RestorePoint(reached or stands, last))
    newest = replace(SET, made=MADE + error, position=f"binlog.000002:800 {stands}")
    assert reaches_beyond(planned, newest, [OLD, NEWEST]) == is_beyond


def test_backup_that_is_not_on_the_host_is_later_than_its_sets(host: PlanningHost) -> None:
    assert reaches_beyond(replace(host.plan(), backup_id="20200101T000000Z-0001"), SET, [OLD, NEWEST])
    assert not reaches_beyond(None, SET, [OLD, NEWEST])
