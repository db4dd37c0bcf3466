"""What a host is asked is parsed, and answered by its own configuration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from zsnapdb.base import run_context
from zsnapdb.config.services import FleetVerb
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent_jobs import RunRecord
from zsnapdb.planning.fleet.jobs import (
    JobRequest,
    JobVerdict,
    command_arguments,
    is_timely,
    is_too_soon,
    refusal,
    run_id_of,
    served_by,
    served_until,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
RUN = run_id_of(FleetVerb.BACKUP, "main", NOW)


def request(**more: Any) -> JobRequest:
    return JobRequest.model_validate(
        {"verb": "backup", "instance": "main", "run_id": RUN, "scheduled": NOW.isoformat(), "host": "db1", **more}
    )


def host(**fleet: Any) -> Settings:
    return Settings.model_validate(
        {
            "instance": {"main": {"repository": "here"}},
            "repository": {"here": {"url": "file:///backups"}},
            "fleet": {"server": "127.0.0.1:7233", "host": "db1", **fleet},
        }
    )


def refused(asked: JobRequest, **fleet: Any) -> str:
    settings = host(**fleet)
    assert settings.fleet is not None
    made = refusal(asked, settings, settings.fleet, NOW)
    return made.reason if made is not None else ""


def test_a_host_does_what_its_own_configuration_allows() -> None:
    assert refused(request()) == ""
    assert "not in fleet.verbs" in refused(request(verb="drill"), verbs=["backup"])
    assert "no instance" in refused(request(instance="other"))
    assert "another host" in refused(request(host="db2"))
    assert refused(request(host=None, verb="drill")) == ""


@pytest.mark.parametrize("days", [-9, 1])
def test_an_order_of_another_time_is_none(days: int) -> None:
    other = NOW + timedelta(days=days)
    assert "not due now" in refused(request(scheduled=other.isoformat()))
    assert "not due now" in refused(request(run_id=run_id_of(FleetVerb.BACKUP, "main", other)))
    assert "not due now" in refused(request(run_id="99999999T999999Z-00000000"))
    assert is_timely(NOW - timedelta(days=7), NOW)


@pytest.mark.parametrize(
    ("days", "anywhere", "follows"),
    [(1, False, JobVerdict.AGAIN), (-9, False, JobVerdict.NEVER), (1, True, JobVerdict.ELSEWHERE)],
)
def test_a_job_is_not_lost_because_the_clock_of_a_host_is_behind(
    days: int, anywhere: bool, follows: JobVerdict
) -> None:
    other, settings = NOW + timedelta(days=days), host()
    assert settings.fleet is not None
    made = refusal(
        request(scheduled=other.isoformat(), host=None if anywhere else "db1"), settings, settings.fleet, NOW
    )
    assert made is not None
    assert made.verdict is follows


def test_a_run_of_long_ago_that_is_answered_again_serves_no_time_of_today() -> None:
    old = NOW - timedelta(days=3)
    assert served_until(request(run_id=run_id_of(FleetVerb.BACKUP, "main", old)), NOW) == old
    assert served_until(request(), NOW + timedelta(minutes=9)) == NOW


@pytest.mark.parametrize(
    "spoiled",
    [
        {"instance": "--full"},
        {"instance": "main --full"},
        {"instance": "main\n"},
        {"instance": "../main"},
        {"instance": ""},
        {"instance": "m" * 49},
        {"run_id": "--fresh"},
        {"run_id": f"{RUN}\n"},
        {"run_id": ""},
        {"verb": "restore"},
        {"verb": "backup --full"},
        {"host": "-x"},
        {"scheduled": "yesterday"},
        {"scheduled": "9999-12-31T23:59:59Z"},
        {"format": 2},
    ],
)
def test_what_is_no_name_is_no_request(spoiled: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        request(**spoiled)


@given(st.text(), st.text(), st.text())
def test_whatever_names_are_sent_the_words_are_those_of_one_command(verb: str, instance: str, run: str) -> None:
    try:
        asked = request(verb=verb, instance=instance, run_id=run)
    except ValidationError:
        return
    made = command_arguments(asked)
    assert made[0] in set(FleetVerb)
    assert made[1] == asked.instance
    assert not made[1].startswith("-")
    assert made[2:] == ("--json", "--once", asked.run_id)


@pytest.mark.parametrize("verb", FleetVerb)
def test_every_command_is_told_its_run_so_that_a_repeated_one_does_nothing_twice(verb: FleetVerb) -> None:
    assert command_arguments(request(verb=verb)) == (verb, "main", "--json", "--once", RUN)


def record(**more: Any) -> RunRecord:
    fields = {"run_id": "other", "scheduled": NOW, "started": NOW, "finished": NOW, "exit_code": 0, **more}
    return RunRecord.model_validate(fields)


def test_a_backup_of_the_agent_serves_every_time_before_it() -> None:
    assert served_by(request(), record()) == "other"
    assert served_by(request(), record(scheduled=NOW - timedelta(seconds=1))) == ""
    assert served_by(request(), record(exit_code=6)) == ""
    assert served_by(request(), record(exit_code=None)) == ""
    assert served_by(request(), None) == ""
    assert served_by(request(verb="drill"), record()) == ""


def test_a_flood_of_requests_is_spaced_and_another_attempt_is_not() -> None:
    settings = host(spacing=60)
    assert settings.fleet is not None
    soon = NOW + timedelta(seconds=59)
    assert is_too_soon(request(), record(), settings.fleet, soon)
    assert not is_too_soon(request(), record(), settings.fleet, soon + timedelta(seconds=1))
    assert not is_too_soon(request(), record(run_id=RUN), settings.fleet, soon)
    # A clock that was set back holds nothing up.
    assert not is_too_soon(request(), record(started=NOW + timedelta(days=1)), settings.fleet, soon)


@given(st.datetimes(datetime(1980, 1, 1), datetime(2900, 1, 1), timezones=st.just(UTC)), st.sampled_from(FleetVerb))
def test_a_time_of_a_schedule_has_one_run_whoever_begins_it(scheduled: datetime, verb: FleetVerb) -> None:
    made = run_id_of(verb, "main", scheduled)
    assert run_context.is_run_id(made)
    assert made == run_id_of(verb, "main", scheduled.replace(microsecond=0))
    assert made != run_id_of(verb, "other", scheduled)
