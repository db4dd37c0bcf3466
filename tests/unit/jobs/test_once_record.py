"""What this host records of a run is durable before anybody is answered, and goes when nobody can ask for it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from zsnapdb.base.errors import BusyError, DamagedError, PreflightError
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.record.idempotency_records import Action, OnceRecords
from zsnapdb.planning.idempotency import KEPT_DAYS, RunState

RUN = "20261127T080000Z-0123abcd"
NOW = datetime(2026, 11, 27, 9, tzinfo=UTC)
ACTION = Action("prune", "main in r")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return replace(THIS_HOST, run=tmp_path / "run", records=tmp_path / "lib" / "stored", now=lambda: NOW)


def test_a_record_is_read_as_it_was_written_and_only_its_owner_can_read_it(host: Host) -> None:
    records = OnceRecords(host)
    assert records.read(RUN) is None
    done = records.end(records.begin(RUN, ACTION), 7, "two lines\nof text", '{"kind": "prune"}')
    assert records.read(RUN) == done
    assert (done.is_done, done.action, done.exit_code) == (True, ACTION, 7)
    assert os.stat(records.file(RUN)).st_mode & 0o777 == 0o600
    assert os.stat(host.runs).st_mode & 0o777 == 0o700


def test_records_of_days_that_nobody_can_ask_for_go(host: Host) -> None:
    OnceRecords(host).begin(RUN, ACTION)
    later = replace(host, now=lambda: NOW + timedelta(days=KEPT_DAYS + 1))
    OnceRecords(later).begin("20261228T080000Z-00000000", ACTION)
    assert [folder.name for folder in host.runs.iterdir()] == ["20261228"]


def test_what_is_no_record_of_this_run_answers_nothing(host: Host) -> None:
    records = OnceRecords(host)
    records.begin(RUN, ACTION)
    for spoiled in (b"", b"{}", records.file(RUN).read_bytes().replace(b"0123abcd", b"0123abce")):
        records.file(RUN).write_bytes(spoiled)
        with pytest.raises(DamagedError):
            records.read(RUN)


def test_a_record_that_cannot_be_written_lets_nothing_begin(host: Host) -> None:
    host.runs.parent.mkdir(parents=True)
    host.runs.write_text("in the way")
    with pytest.raises(PreflightError):
        OnceRecords(host).begin(RUN, ACTION)


def test_given_up_is_recorded_of_an_interrupted_run_alone(host: Host) -> None:
    records = OnceRecords(host)
    for unknown in ("", RUN):
        records.note_given_up(unknown)
    assert records.read(RUN) is None
    begun = records.begin(RUN, ACTION)
    records.note_given_up(RUN)
    known = records.read(RUN)
    assert known is not None
    assert known.state is RunState.GIVEN_UP
    records.end(begun, 0, "", "{}")
    records.note_given_up(RUN)
    known = records.read(RUN)
    assert known is not None
    assert known.is_done


def test_while_the_run_is_at_work_it_is_busy_and_says_how_to_repeat(host: Host) -> None:
    records = OnceRecords(host)
    with (
        records.alone(RUN, ACTION, 0, lambda _: None),
        pytest.raises(BusyError) as refused,
        records.alone(RUN, ACTION, 0, lambda _: None),
    ):
        raise AssertionError
    assert f"--once {RUN}" in refused.value.hint
