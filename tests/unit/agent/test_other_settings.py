"""The agent lets a server that is being replaced be, and begins an archive again that has other settings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from zsnapdb.agent import supervisor
from zsnapdb.config.settings import parse

CONFIGURATION = """
[agent]
reap = { every = "30m" }
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
archive = true
backup = { cron = "17 * * * *" }
[instance.other]
socket = "/y"
repository = "here"
[instance.other.agent]
backup = { cron = "5 * * * *" }
[repository.here]
url = "file:///nowhere"
"""
BACKUP, ARCHIVE = ("backup", "main"), ("binlog", "archive", "main")


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentMonth:
    """An agent that looks every five minutes, which is a hundred times faster. Its archive runs on."""
    monkeypatch.setattr(supervisor, "LONGEST_WAIT", 300.0)
    begin = datetime(2026, 11, 24, 20, 1, tzinfo=UTC)
    made = AgentMonth(parse(CONFIGURATION, "test"), MemoryRecords(tmp_path), begin)
    made.answer = lambda words: (1e9 if words == ARCHIVE else 60.0, 0)
    return made


def test_no_job_begins_of_an_instance_whose_server_is_being_replaced_and_then_one_run_makes_up_for_it(
    month: AgentMonth,
) -> None:
    month.held["main"] = "a rewind did not end"
    month.boot()
    month.live(hours=5)
    assert not [run for run in month.runs if "main" in run.words]
    assert len(month.started("backup", "other")) == 5
    assert len(month.started("reap")) == 10
    assert month.said.count("no job of main begins: a rewind did not end") == 1
    del month.held["main"]
    month.live(minutes=10)
    assert (len(month.started(*BACKUP)), len(month.started(*ARCHIVE))) == (1, 1)
    assert "jobs of main begin again" in month.said


def test_a_job_that_runs_goes_on_while_its_server_is_being_replaced(month: AgentMonth) -> None:
    month.boot()
    month.live(minutes=10)
    month.held["main"] = "a rewind is at work"
    month.live(hours=5)
    assert [run.ended for run in month.runs if run.words == ARCHIVE] == [None]


@pytest.mark.parametrize(
    ("change", "is_begun_again"),
    [
        (('socket = "/x"', 'socket = "/z"'), True),
        (('socket = "/x"', 'socket = "/x"\nbinlog.interval = "1s"'), True),
        (('url = "file:///nowhere"', 'url = "file:///moved"'), True),
        (('cron = "17 * * * *"', 'cron = "27 * * * *"'), False),
        (('socket = "/y"', 'socket = "/z"'), False),
    ],
)
def test_an_archive_is_begun_again_if_its_instance_or_repository_has_other_settings(
    month: AgentMonth, change: tuple[str, str], is_begun_again: bool
) -> None:
    month.boot()
    month.live(minutes=10)
    assert change[0] in CONFIGURATION
    assert month.agent is not None
    month.agent.use(parse(CONFIGURATION.replace(*change), "test"))
    month.live(seconds=1)
    stopped = [run.is_stopped for run in month.runs if run.words == ARCHIVE]
    assert stopped == ([True, False] if is_begun_again else [False])


def test_an_archive_that_ended_with_the_agent_begins_at_once_with_the_next_one(month: AgentMonth) -> None:
    month.boot()
    month.live(minutes=10)
    assert month.agent is not None
    month.agent.end(lambda seconds: None, 50.0)
    assert [run.poll() for run in month.runs if run.words == ARCHIVE] == [0]
    month.boot()
    month.live(seconds=1)
    assert len(month.started(*ARCHIVE)) == 2


def test_an_archive_that_lost_the_signal_is_told_again(month: AgentMonth) -> None:
    month.boot()
    month.live(minutes=10)
    month.deaf.add(ARCHIVE)
    assert month.agent is not None
    month.agent.use(parse(CONFIGURATION.replace('"/x"', '"/z"'), "test"))
    month.live(seconds=1)
    month.live(minutes=6)
    assert len(month.started(*ARCHIVE)) == 2
