"""Schedules mean the days that cron means by them: each weekday, setup's own schedules, and the shipped files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.agent.schedule import Schedule
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.services import ScheduleSettings
from zsnapdb.config.settings import InstanceSettings, parse
from zsnapdb.planning.setup.configuration import ServerLogin, merged_configuration
from zsnapdb.planning.setup.facts import SetupAnswers
from zsnapdb.planning.setup.layout import cron_text

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CRON = (CHECKOUT / "configs" / "zsnapdb.cron").read_text()


def times(cron: str, days: int = 7, begin: datetime = MONDAY) -> list[datetime]:
    schedule = Schedule.of(ScheduleSettings(cron=cron), "UTC")
    found, at = [], begin - timedelta(seconds=1)
    while (following := schedule.after(at)) is not None and following < begin + timedelta(days=days):
        found.append(following)
        at = following
    return found


def weekdays(cron: str) -> list[str]:
    return [NAMES[time.weekday()] for time in times(cron)]


@pytest.mark.parametrize(("number", "name"), [(0, "sun"), *enumerate(NAMES, 1)])
def test_a_weekday_is_the_one_that_cron_means(number: int, name: str) -> None:
    assert weekdays(f"0 3 * * {number}") == [name]
    assert weekdays(f"0 3 * * {name}") == [name]
    assert weekdays(f"0 3 * * {name.upper()}") == [name]


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("1-5", "mon tue wed thu fri"),
        ("mon-fri", "mon tue wed thu fri"),
        ("5-7", "fri sat sun"),
        ("sat-sun", "sat sun"),
        ("0-2", "mon tue sun"),
        ("0-0", "sun"),
        ("6,0", "sat sun"),
        ("1-5/2", "mon wed fri"),
        ("mon-fri/2,7", "mon wed fri sun"),
        ("*/2", "tue thu sat sun"),
        ("0-7", "mon tue wed thu fri sat sun"),
        ("*", "mon tue wed thu fri sat sun"),
    ],
)
def test_ranges_lists_and_steps_of_weekdays_are_those_of_cron(field: str, days: str) -> None:
    assert weekdays(f"0 3 * * {field}") == days.split()


@pytest.mark.parametrize("field", ["8", "5-1", "fri-mon", "someday", "1-", "*/0", "1-5/0", "1,,2", "1/2", "", "-1"])
def test_weekdays_that_cron_does_not_know_are_an_error_of_the_configuration(field: str) -> None:
    with pytest.raises(ConfigError, match="cron = ") as caught:
        Schedule.of(ScheduleSettings(cron=f"0 3 * * {field or ','}"), "UTC")
    assert "0 and 7 are Sunday" in caught.value.hint


def test_a_day_of_the_month_or_a_weekday_is_enough_if_both_are_given() -> None:
    found = times("0 3 1,15 * 5", days=37, begin=datetime(2026, 11, 1, tzinfo=UTC))
    assert [f"{time:%m-%d}" for time in found] == [
        *("11-01", "11-06", "11-13", "11-15", "11-20", "11-27", "12-01", "12-04")
    ]


def test_both_must_match_if_one_of_them_begins_with_a_star() -> None:
    found = times("0 3 */2 * 1", days=30, begin=datetime(2026, 11, 1, tzinfo=UTC))
    assert [f"{time:%d}" for time in found] == ["09", "23"]


FIELD = st.lists(st.integers(0, 7), min_size=1, max_size=4).map(lambda days: ",".join(map(str, days)))
DAY = st.lists(st.integers(1, 31), min_size=1, max_size=4).map(lambda days: ",".join(map(str, days)))


@settings(max_examples=60)
@given(day=DAY | st.just("*"), weekday=FIELD | st.just("*"), begin=st.dates(date(2024, 1, 1), date(2030, 1, 1)))
def test_every_day_of_a_schedule_is_one_that_cron_would_run_on(day: str, weekday: str, begin: date) -> None:
    def runs(when: date) -> bool:
        of_month = day == "*" or str(when.day) in day.split(",")
        of_week = weekday == "*" or when.isoweekday() % 7 in {int(number) % 7 for number in weekday.split(",")}
        return (of_month and of_week) if "*" in (day, weekday) else (of_month or of_week)

    found = times(f"30 4 {day} * {weekday}", days=40, begin=datetime(begin.year, begin.month, begin.day, tzinfo=UTC))
    assert [time.date() for time in found] == [
        when for when in (begin + timedelta(days=number) for number in range(40)) if runs(when)
    ]


def jobs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the schedule and the command of each line for cron, those in comments too."""
    for line in text.splitlines():
        found = re.fullmatch(r"(?:# )?((?:[0-9*/,-]+ ){5})root (?:\S*/)?zsnapdb (.*?) *>/dev/null.*", line)
        if found is not None:
            yield found[1].strip(), found[2]


def setup_schedules() -> InstanceSettings:
    answers = SetupAnswers(repository="file:///backups", instance="main")
    return parse(merged_configuration(answers, ServerLogin("/s", "zsnapdb"), None).text, "setup").instance["main"]


def test_the_schedules_of_setup_verify_on_saturday_and_drill_on_sunday() -> None:
    agent = setup_schedules().agent
    assert agent.verify is not None
    assert agent.drill is not None
    assert (weekdays(agent.verify.cron or ""), weekdays(agent.drill.cron or "")) == (["sat"], ["sun"])


def test_the_agent_and_cron_run_what_setup_schedules_at_the_same_times() -> None:
    agent = setup_schedules().agent
    lines = {command.split()[0]: when for when, command in jobs(cron_text(("/usr/bin/zsnapdb",), "main", "/z.toml"))}
    for name in ("backup", "prune", "verify", "drill"):
        schedule = getattr(agent, name)
        assert times(schedule.cron) == times(lines[name]), name


def test_the_shipped_cron_file_runs_each_job_on_the_day_of_its_timer() -> None:
    known = {command: when for when, command in jobs(CRON)}
    (full,) = [when for command, when in known.items() if "--full" in command]
    (drill,) = [when for command, when in known.items() if command.startswith("drill")]
    for name, when in (("full", full), ("drill", drill)):
        timer = (CHECKOUT / "configs" / "systemd" / f"zsnapdb-{name}@.timer").read_text()
        day = re.search(r"^OnCalendar=(\w+) ", timer, re.MULTILINE)
        assert day is not None
        assert weekdays(when) == [day[1].lower()], name


WRITES = ("backup", "prune", "copy")
"""The commands that exclude each other."""


def test_no_job_of_the_shipped_cron_file_begins_in_the_minute_of_one_that_excludes_it() -> None:
    writing = [(when, command) for when, command in jobs(CRON) if command.startswith(WRITES)]
    assert len(writing) == 4
    started = defaultdict(list)
    for when, command in writing:
        for time in times(when):
            started[time].append(command)
    assert [commands for commands in started.values() if len(commands) > 1] == []
    assert [command for _, command in writing if "--wait " not in command] == []
