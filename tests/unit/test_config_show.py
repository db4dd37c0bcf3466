"""`config show` prints the settings in effect with the origin of each, and no secret."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.command_line import zsnapdb
from zsnapdb.config.effective import EffectiveSetting, SettingOrigin, effective, key_lines, matching, metadata_of
from zsnapdb.config.errors import may_be_secret
from zsnapdb.config.services import HIDDEN, ConfigSection
from zsnapdb.config.settings import parse

EXAMPLE = (Path(__file__).parents[2] / "configs" / "zsnapdb.example.toml").read_text(encoding="utf-8")
SECRET = "planted-secret-4711"
TEXT = f"""
[instance.main]
socket = "/x"
password_env = "DB_PASSWORD"
repository = "offsite"
lock = {{ deadline = "2s", kill = "select" }}
[instance.main.masking]
required = true
run = [
  ["/etc/mask", "--token", "{SECRET}"],  # two lines
  "/etc/mask.sql",
]
canaries = ["{SECRET}"]
[[instance.main.hooks]]
when = "before"
run = ["/etc/hook", "{SECRET}"]
[[instance.main.hooks]]
when = "after"

run = "/etc/after"
[repository.offsite]
url = "s3://bucket"
region = "eu-1"
keep.last = 7
[notifications.to.ops]
webhook = "https://hooks.example/{SECRET}"
[notifications.to.desk]
script = ["/bin/tell", "{SECRET}"]
"""


def shown(text: str) -> dict[str, EffectiveSetting]:
    return {one.key: one for one in effective(parse(text, "test"), key_lines(text))}


def leaves(value: Any) -> int:
    return sum(map(leaves, value.values())) if isinstance(value, dict) else 1


def test_every_value_of_a_file_has_its_line() -> None:
    found, lines = key_lines(EXAMPLE), EXAMPLE.split("\n")
    assert len(found) == leaves(tomllib.loads(EXAMPLE)) > 50
    for path, line in found.items():
        (name,) = [part for part in path if isinstance(part, str)][-1:]
        assert name in lines[line - 1]


NAMES = st.sampled_from(["a", "b", "long_name", "c-d"])
VALUES = st.sampled_from(["1", '"text"', "[\n 1,\n 2\n]", '"""\n[x]\n"""', "{ a = 1, b = { c = 2 } }", "[]"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Return a TOML document, and the line of each statement with a value."""
    lines, starts = list[str](), list[int]()
    for table in range(draw(st.integers(1, 4))):
        lines += [draw(st.sampled_from(["", "# note = 1"])), "[[t]]" if draw(st.booleans()) else f"[x{table}]"]
        for number in range(draw(st.integers(0, 3))):
            starts.append(len(lines) + 1)
            lines += f"{draw(NAMES)}{number} = {draw(VALUES)}".split("\n")
    return "\n".join(lines), starts


@given(documents())
def test_lines_are_those_of_the_statements(document: tuple[str, list[int]]) -> None:
    text, starts = document
    found = key_lines(text)
    assert sorted(set(found.values())) == starts
    for path in found:
        value: Any = tomllib.loads(text)
        for part in path:
            value = value[part]


def test_settings_that_are_shown_are_those_in_effect() -> None:
    written = "\n".join(f"{one.key} = {one.value}" for one in shown(EXAMPLE).values() if one.value is not None)
    assert parse(written, "written").model_dump() == parse(EXAMPLE, "example").model_dump()


def test_origin_is_the_line_the_repository_or_the_default() -> None:
    every, lines = shown(TEXT), TEXT.split("\n")
    for key, begin in {
        "instance.main.lock.deadline": "lock =",
        "instance.main.masking.run": "run = [",
        "instance.main.hooks[0].when": 'when = "before"',
        "instance.main.hooks[1].run": 'run = "/etc/after"',
        "repository.offsite.s3.region": "region =",
        "repository.offsite.keep.last": "keep.last",
    }.items():
        line = every[key].line
        assert line is not None
        assert lines[line - 1].startswith(begin)
    assert (every["instance.main.lock.deadline"].value, every["instance.main.lock.budget"].value) == ('"2s"', '"1m"')
    assert every["instance.main.lock.budget"].origin is SettingOrigin.DEFAULT
    kept = every["instance.main.keep"]
    assert (kept.value, kept.origin) == ("repository.offsite.keep", SettingOrigin.REPOSITORY)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(TEXT)
    for more in ([], ["--json"]):
        done = zsnapdb("config", "show", *more, config=str(config), ZSNAPDB_TOKEN=SECRET, DB_PASSWORD=SECRET)
        assert done.returncode == 0
        assert SECRET not in done.stdout + done.stderr
        assert "/etc/mask" in done.stdout
    hidden = {one["key"] for one in json.loads(done.stdout)["settings"] if one["hidden"]}
    assert hidden == {"instance.main.masking.canaries", "notifications.to.ops.webhook", "ZSNAPDB_TOKEN"}


def test_key_names_a_setting_a_table_or_a_part(tmp_path: Path) -> None:
    every = tuple(shown(TEXT).values())
    assert [one.key for one in matching(every, "instance.main.lock.deadline")] == ["instance.main.lock.deadline"]
    assert len(matching(every, "instance.main.lock")) == 6
    assert {one.key for one in matching(every, "hooks")} >= {"instance.main.hooks[0].when"}
    config = tmp_path / "zsnapdb.toml"
    config.write_text(TEXT)
    done = zsnapdb("config", "show", "instance.main.lock.deadlin", config=str(config))
    assert done.returncode == 2
    assert "did you mean instance.main.lock.deadline" in done.stderr


@pytest.mark.parametrize("by", ["option", "environment"])
def test_choice_of_the_file_is_shown(by: str, tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(TEXT)
    more = ["--config", str(config)] if by == "option" else []
    done = zsnapdb("config", "show", "--json", *more, config=str(config) if not more else "")
    assert json.loads(done.stdout)["chosen_by"] == by


def models(kind: type[ConfigSection]) -> Iterator[type[ConfigSection]]:
    for one in kind.__subclasses__():
        yield one
        yield from models(one)


def test_no_advice_about_a_value_without_quotes_prints_a_hidden_setting() -> None:
    named = {(one.__name__, name): field for one in models(ConfigSection) for name, field in one.model_fields.items()}
    hidden = {key for key, field in named.items() if HIDDEN in metadata_of(field)}
    assert hidden
    assert {key for key in hidden if not may_be_secret(key[1])} == set()
