"""A host whose fleet is away goes on by itself, within the limit; else its agent leaves backups to the fleet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from zsnapdb.agent.schedule import Schedule
from zsnapdb.config.services import FleetVerb, ScheduleSettings
from zsnapdb.config.settings import Settings
from zsnapdb.planning.agent_jobs import JobKind, JobName, RunRecord
from zsnapdb.planning.fleet.jobs import run_id_of

START = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
BACKUP = JobName("main", JobKind.BACKUP)


def settings(**fleet: object) -> Settings:
    return Settings.model_validate(
        {
            "instance": {
                "main": {
                    "repository": "here",
                    "agent": {"backup": {"cron": "0 * * * *"}, "verify": {"cron": "20 * * * *"}},
                }
            },
            "repository": {"here": {"url": "file:///backups"}},
            "fleet": {"server": "127.0.0.1:7233", "host": "db1", "fallback_after": "2h", **fleet},
        }
    )


def month(folder: Path, **fleet: object) -> AgentMonth:
    made = AgentMonth(settings(**fleet), MemoryRecords(folder), START)
    made.boot()
    return made


def give(agent: AgentMonth) -> None:
    """Let the fleet have a backup made at this time."""
    records, at = agent.records, agent.time
    records.set_given(BACKUP, at)
    record = RunRecord(run_id="of-the-fleet", scheduled=at, started=at)
    records.set_run(BACKUP, record.ended(at + timedelta(seconds=40), 0, "", is_good=True))


def backups(agent: AgentMonth) -> list[tuple[str, ...]]:
    return [run.words for run in agent.runs if run.words[0] == "backup"]


def test_while_the_fleet_gives_the_backups_the_agent_makes_none(tmp_path: Path) -> None:
    agent = month(tmp_path)
    for _ in range(48):
        agent.live(hours=1)
        give(agent)
    assert backups(agent) == []
    # What is the agent's alone goes on.
    assert len(agent.started("verify", "main")) == 48


def test_when_the_fleet_is_away_the_agent_begins_within_the_limit_and_goes_on_at_its_own_times(tmp_path: Path) -> None:
    agent = month(tmp_path)
    for _ in range(5):
        agent.live(hours=1)
        give(agent)
    last = agent.time
    agent.live(hours=24)
    times = [run.began for run in agent.runs if run.words[0] == "backup"]
    # The first time that was missed came half an hour after the last backup.
    assert HOUR / 2 + 2 * HOUR <= times[0] - last <= HOUR / 2 + 2 * HOUR + timedelta(minutes=1)
    assert max(later - earlier for earlier, later in pairwise(times)) <= HOUR + timedelta(minutes=1)
    count = len(times)
    for _ in range(24):
        give(agent)
        agent.live(hours=1)
    assert len(backups(agent)) <= count + 1


def test_a_fleet_that_gives_backups_and_ends_them_at_once_keeps_no_agent_from_making_them(tmp_path: Path) -> None:
    agent = month(tmp_path)
    agent.live(hours=1)
    give(agent)
    for _ in range(48):
        agent.live(minutes=30)
        agent.records.set_given(BACKUP, agent.time)
        before = agent.records.run(BACKUP)
        assert before is not None
        record = RunRecord(run_id="of-the-fleet", scheduled=before.scheduled, started=agent.time)
        agent.records.set_run(BACKUP, record.ended(agent.time, 130, "", is_good=False))
    times = [run.began for run in agent.runs if run.words[0] == "backup"]
    assert max(later - earlier for earlier, later in pairwise(times)) <= 3 * HOUR + timedelta(minutes=1)


def test_each_of_its_runs_has_the_id_that_the_fleet_gives_to_the_same_time(tmp_path: Path) -> None:
    agent = month(tmp_path)
    agent.live(hours=12)
    runs = [words[words.index("--once") + 1] for words in backups(agent)]
    at = START.replace(minute=0)
    expected = {run_id_of(FleetVerb.BACKUP, "main", at + hour * HOUR) for hour in range(1, 14)}
    assert len(runs) == len(set(runs)) > 5
    assert set(runs) <= expected


def test_a_run_that_found_another_at_work_is_tried_again_as_the_same_run(tmp_path: Path) -> None:
    agent = month(tmp_path)
    agent.answer = lambda words: (5.0, 75 if words[0] == "backup" else 0)
    agent.live(hours=3, minutes=10)
    runs = {words[words.index("--once") + 1] for words in backups(agent)}
    assert len(backups(agent)) > 5
    assert runs <= {run_id_of(FleetVerb.BACKUP, "main", START.replace(minute=0) + n * HOUR) for n in (2, 3)}
    # The other was the fleet's: when it has ended, there is nothing left to do.
    give(agent)
    agent.live(minutes=1)
    count = len(backups(agent))
    agent.live(hours=1)
    assert len(backups(agent)) <= count + 1


@pytest.mark.parametrize("fleet", [{"fallback": "none"}, {"verbs": ["drill"]}])
def test_a_host_that_shares_no_backups_with_its_fleet_has_the_agents_schedule_alone(
    tmp_path: Path, fleet: dict[str, object]
) -> None:
    agent = month(tmp_path, **fleet)
    agent.live(hours=10)
    assert backups(agent) == [("backup", "main")] * 10


@pytest.mark.parametrize("cron", ["0 * * * *", "*/5 * * * *", "30 2 * * 0", "0 0 1 * *"])
def test_the_time_that_was_last_is_followed_by_one_that_is_not_yet(cron: str) -> None:
    schedule = Schedule.of(ScheduleSettings(cron=cron), "Europe/Berlin")
    last = schedule.until(START)
    assert last is not None
    assert last <= START
    following = schedule.after(last)
    assert following is not None
    assert following > START


def test_contact_with_the_fleet_from_the_future_delays_no_backup(tmp_path: Path) -> None:
    """The clock was a year ahead when the fleet last gave a job. Since then the fleet is away."""
    agent = month(tmp_path)
    give(agent)
    agent.records.set_given(BACKUP, agent.time + timedelta(days=365))
    agent.live(hours=5)
    times = [run.began for run in agent.runs if run.words[0] == "backup"]
    assert len(times) == 5
    assert all(time.minute == 0 for time in times)
