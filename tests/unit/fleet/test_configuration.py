"""Mistakes in what a fleet is configured with are said before anything is asked or done."""

from __future__ import annotations

import pytest

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.base.errors import ConfigError
from zsnapdb.config import fleet_jobs, settings

ENGINE = '[engine]\nserver = "127.0.0.1:7233"\n'
SHOP = '[instance.shop]\nhost = "db1"\n'
HOST = '[instance.main]\nrepository = "here"\n[repository.here]\nurl = "file:///backups"\n[fleet]\nhost = "db1"\n'


def test_the_example_can_be_used() -> None:
    known = fleet_jobs.parse_jobs((CHECKOUT / "configs" / "fleet-jobs.example.toml").read_text(), "example")
    assert known.engine.certificate is not None
    assert known.instance


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENGINE, "missing key instance"),
        (SHOP, "missing key engine"),
        (f'{ENGINE}[instance."../x"]\nhost = "db1"', "instance"),
        (f'{ENGINE}[instance.shop]\nhost = "-rf"', "host"),
        (f'{ENGINE}{SHOP}bucket = "none"', "which has no limit"),
        (f'{ENGINE}{SHOP}backup = {{ every = "1h", cron = "0 1 * * *" }}', "exactly one of cron and every"),
        (f'{ENGINE}{SHOP}backup = {{ every = "1s" }}', "every"),
        (f'{ENGINE}{SHOP}backup = {{ every = "1h", arguments = ["--full"] }}', "unknown key .*arguments"),
        (f"{ENGINE}{SHOP}[bucket.store]\nlimit = 0", "limit"),
        (f'{ENGINE}{SHOP}[[window]]\nstart = "01:00"\nend = "01:00"', "the same time"),
        (f'{ENGINE}{SHOP}[[window]]\nstart = "25:00"\nend = "01:00"', "start"),
        (f'[engine]\nserver = "temporal.example.net:7233"\n{SHOP}', "needs certificate and key"),
        (f'[engine]\nserver = "127.0.0.1:7233"\nca = "/ca.pem"\n{SHOP}', "mean nothing without certificate"),
        (f'[engine]\nserver = "temporal.example.net"\n{SHOP}', "server"),
        ("x", "is not valid TOML"),
    ],
)
def test_mistakes_in_the_jobs_are_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fleet_jobs.parse_jobs(text, "fleet-jobs.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('server = "temporal.example.net:7233"', "needs certificate and key"),
        ('server = "127.0.0.1:7233"\nverbs = ["restore"]', "verbs"),
        ('server = "127.0.0.1:7233"\nverbs = ["backup", "backup"]', "named twice"),
        ('server = "127.0.0.1:7233"\nverbs = ["backup"]\ndrills = true', "`verbs` must contain"),
        ('server = "127.0.0.1:7233"\nfallback_after = "1s"', "fallback_after"),
    ],
)
def test_mistakes_of_a_host_are_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings.parse(HOST + text, "zsnapdb.toml")
