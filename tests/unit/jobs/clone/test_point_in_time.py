"""Which snapshot set answers for a moment."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from zsnapdb.base.errors import NotFound, UsageError
from zsnapdb.jobs.clone.query import Candidate, choose

UUID = "3b539809-e55b-11f1-8822-4e3318db0587"
SETS = [
    Candidate("20261120T100000Z-0001", datetime(2026, 11, 20, 10, 0, 3, tzinfo=UTC), f"binlog.000001:500 {UUID}:1-10"),
    Candidate("20261120T110000Z-0002", datetime(2026, 11, 20, 11, 0, 0, tzinfo=UTC), f"binlog.000001:900 {UUID}:1-20"),
]
MARIA = [
    Candidate("20261120T100000Z-0001", datetime(2026, 11, 20, 10, tzinfo=UTC), "binlog.000001:500 0-1-10"),
    Candidate("20261120T110000Z-0002", datetime(2026, 11, 20, 11, tzinfo=UTC), "binlog.000001:900 0-1-20"),
]


@pytest.mark.parametrize(
    ("requested", "number", "exact"),
    [
        ("latest", 1, False),
        ("latest-backup", 1, True),
        ("20261120T100000Z-0001", 0, True),
        ("2026-11-20T10:59:59Z", 0, False),
        ("2026-11-20T11:00:00Z", 1, False),
        ("2026-11-20T12:30:00+01:00", 1, False),
        ("2026-11-20 12:30 Europe/Berlin", 1, False),
        (f"{UUID}:10", 0, True),
        (f"{UUID}:1-15", 0, False),
        (f"{UUID}:20", 1, True),
    ],
)
def test_the_newest_set_that_is_not_past_the_moment_answers(requested: str, number: int, exact: bool) -> None:
    moment = choose(SETS, requested)
    assert (moment.backup_id, moment.is_exact) == (SETS[number].backup_id, exact)
    assert ("exactly the requested moment" in moment.describe()) == exact


@pytest.mark.parametrize(
    ("requested", "number", "exact"),
    [("0-1-10", 0, True), ("0-1-19", 0, False), ("0-1-25", 1, False), ("0-2-20", 1, False)],
)
def test_positions_of_mariadb_are_understood(requested: str, number: int, exact: bool) -> None:
    moment = choose(MARIA, requested)
    assert (moment.backup_id, moment.is_exact) == (MARIA[number].backup_id, exact)


@pytest.mark.parametrize(
    ("sets", "requested", "number"),
    [(SETS, f"before-{UUID}:15", 0), (SETS, f"before-{UUID}:25", 1), (MARIA, "before-0-1-20", 0)],
)
def test_right_before_a_transaction_the_newest_set_without_it_answers_and_is_never_exact(
    sets: list[Candidate], requested: str, number: int
) -> None:
    moment = choose(sets, requested)
    assert (moment.backup_id, moment.is_exact) == (sets[number].backup_id, False)


def test_the_newest_backup_has_its_name_as_for_a_rescue() -> None:
    assert choose(SETS, "latest-backup").backup_id == SETS[1].backup_id


def test_a_backup_counts_from_its_snapshot_on_not_from_its_name() -> None:
    with pytest.raises(NotFound, match="at or before"):
        choose(SETS, "2026-11-20T10:00:01Z")


def test_what_is_older_than_all_is_refused() -> None:
    for requested in ("2026-11-19T00:00:00Z", f"{UUID}:5", "20261119T100000Z-0001"):
        with pytest.raises(NotFound):
            choose(SETS, requested)


def test_a_time_must_say_its_zone() -> None:
    with pytest.raises(UsageError, match="does not say its zone"):
        choose(SETS, "2026-11-20T10:00:00")
    with pytest.raises(UsageError, match="is a day and not a point in time"):
        choose(MARIA, "2026-11-20")
    with pytest.raises(UsageError, match="is not a point in time"):
        choose(SETS, "an hour ago")
