"""`config check` refuses schedules that cannot be read, and limits that no schedule can keep, with the least limit."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.agent.daemon import check_schedules
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.settings import parse
from zsnapdb.planning.setup.configuration import ServerLogin, merged_configuration
from zsnapdb.planning.setup.facts import SetupAnswers

NOW = datetime(2026, 11, 25, tzinfo=UTC)
CONFIGURATION = """
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
archive = true
{jobs}
[instance.main.objectives]
{objectives}
[repository.here]
url = "file:///nowhere"
"""
DAILY = 'backup = { cron = "15 1 * * *", jitter = "10m" }'


def check(objectives: str, jobs: str = DAILY) -> None:
    check_schedules(parse(CONFIGURATION.format(jobs=jobs, objectives=objectives), "test"), NOW)


@pytest.mark.parametrize(
    ("objectives", "jobs", "least"),
    [
        ('archive_lag = "10s"', DAILY, 29),
        ('rpo = "28s"', DAILY, 29),
        ('archive_lag = "60s"\nwarn_at = 0.3', DAILY, 75),
        ('backup_age = "24h"', DAILY, 86400 + 600 + 1),
        ('drill_age = "6d"', 'drill = { cron = "30 5 * * 0" }', 7 * 86400 + 1),
        ('drill_age = "2d"', 'drill = { cron = "30 5 * * 1-5" }', 3 * 86400 + 1),
        ('verify_age = "1d"', 'verify = { every = "2d" }', 2 * 86400 + 1),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused_with_the_least_one(objectives: str, jobs: str, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"\[instance\.main\.objectives\].* cannot be kept: .*; {least} s is the le"):
        check(objectives, jobs)
    key = objectives.partition(" ")[0]
    check(re.sub(rf'{key} = "\w+"', f'{key} = "{least}s"', objectives), jobs)


@pytest.mark.parametrize(
    ("objectives", "jobs"),
    [
        ('archive_lag = "60s"', DAILY),
        ('backup_age = "26h"', DAILY),
        ('backup_age = "2h"', 'backup = { every = "1h" }\nfull = { cron = "30 2 * * 0" }'),
        ('backup_age = "2h"', ""),
    ],
)
def test_limits_that_can_be_kept_or_that_others_keep_are_accepted(objectives: str, jobs: str) -> None:
    check(objectives, jobs)


def test_the_example_of_a_configuration_can_be_kept_with_everything_in_it() -> None:
    text = (CHECKOUT / "configs" / "zsnapdb.example.toml").read_text()
    keys = "backup_age|archive_lag|rpo|drill_age|verify_age"
    limits = dict(re.findall(rf'^(?:# )?({keys}) = "(\w+)"', text, re.MULTILINE))
    jobs = dict(re.findall(r"^# (backup|drill|verify) = (\{.*\})", text, re.MULTILINE))
    assert len(limits) == 5
    assert len(jobs) == 3
    check(
        "\n".join(f'{key} = "{value}"' for key, value in limits.items()),
        "\n".join(f"{key} = {value}" for key, value in jobs.items()),
    )


def test_what_setup_writes_can_be_kept() -> None:
    answers = SetupAnswers(repository="file:///backups", instance="main")
    check_schedules(parse(merged_configuration(answers, ServerLogin("/s", "zsnapdb"), None).text, "setup"), NOW)


def test_a_schedule_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="61"):
        check("", 'backup = { cron = "61 * * * *" }')
