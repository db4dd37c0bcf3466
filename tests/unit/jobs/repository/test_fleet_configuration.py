"""The configuration of a fleet names repositories alone, and whatever could not be kept is refused."""

from __future__ import annotations

import pytest

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.fleet import parse

REPOSITORY = '[repository.here]\nurl = "file:///backups"\n'


def test_the_example_can_be_used() -> None:
    settings = parse((CHECKOUT / "configs" / "fleet.example.toml").read_text(), "example")
    assert (list(settings.repository), settings.objectives.backup_age) == (["production"], 2 * 86400.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing key repository"),
        ("[repository]", "repository"),
        ('[repository."../x"]\nurl = "file:///backups"', "repository"),
        (f"{REPOSITORY}[instance.main]", "unknown key instance"),
        (f'{REPOSITORY}[objectives]\ncopies = {{ there = "1d" }}', "does not check copies and immutable_for"),
        (f'{REPOSITORY}[repository.here.encryption]\nsigning_key_file = "/key"', "remove `signing_key_file`"),
        (f'heard_within = "0s"\n{REPOSITORY}', "heard_within"),
        ("x", "is not valid TOML"),
    ],
)
def test_mistakes_are_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text, "fleet.toml")
