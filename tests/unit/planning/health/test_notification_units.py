"""Which end of a unit is told, and about what."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.planning.health.notification_events import UnitEnd, unit_failure

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "about"),
    [
        ("zsnapdb-backup@main", ("backup", "main")),
        ("zsnapdb-drill@my-db", ("drill", "my-db")),
        ("zsnapdb-status", ("status", "")),
        ("nightly", ("nightly", "")),
    ],
)
def test_a_failed_unit_of_a_job_is_a_failure_of_that_job(unit: str, about: tuple[str, str]) -> None:
    occasion = unit_failure(UnitEnd(unit, "signal", "KILL"), NOW)
    assert occasion is not None
    assert (occasion.event, occasion.subject, occasion.instance) == (NotificationEvent.FAILURE, *about)
    assert (occasion.text, occasion.exit_code) == (f"unit {unit} failed: signal KILL", None)
    assert f"journalctl -u {unit}" in occasion.hint


def test_a_good_end_and_a_run_that_found_another_one_are_no_failure() -> None:
    assert unit_failure(UnitEnd("zsnapdb-agent", "success", "0"), NOW) is None
    assert unit_failure(UnitEnd("zsnapdb-backup@main", "exit-code", "75"), NOW) is None


def test_an_end_that_systemd_does_not_tell_is_a_failure() -> None:
    occasion = unit_failure(UnitEnd("zsnapdb-backup@main"), NOW)
    assert occasion is not None
    assert occasion.text == "unit zsnapdb-backup@main failed"


def test_the_exit_code_is_that_of_the_unit() -> None:
    occasion = unit_failure(UnitEnd("zsnapdb-backup@main", "exit-code", "6"), NOW)
    assert occasion is not None
    assert (occasion.exit_code, occasion.text) == (6, "unit zsnapdb-backup@main failed: exit-code 6")
