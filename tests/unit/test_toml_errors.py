"""An error of TOML names its line, the mistake and a repair that can be copied. It shows no secret."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import zsnapdb.config
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.effective import metadata_of
from zsnapdb.config.errors import read_toml
from zsnapdb.config.services import HIDDEN

ABOVE = '# a host\n[instance.main]\nsocket = "/run/mysqld.sock"\n\n'
"""Four valid lines: the mistake is in line 5."""


def refused(lines: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_toml(f"{ABOVE}{lines}\n", "zsnapdb.toml")
    return caught.value


@pytest.mark.parametrize(
    ("line", "problem", "repair"),
    [
        ("rpo = 2h", "the value of rpo is not in quotes", 'write `rpo = "2h"`'),
        ("objectives.rpo = 2h # note", "objectives.rpo is not in quotes", 'write `objectives.rpo = "2h"`'),
        ("objectives = { rpo = 2h, drill_age = 7d }", "rpo is not in quotes", 'write `rpo = "2h"`'),
        ("user = backup", "user is not in quotes", 'write `user = "backup"`'),
        ("socket2 = /run/x.sock", "socket2 is not in quotes", 'write `socket2 = "/run/x.sock"`'),
        ("host = 10.0.0.5", "host is not in quotes", 'write `host = "10.0.0.5"`'),
        ("chunk_size = 32MB", "chunk_size is not in quotes", 'write `chunk_size = "32MiB"`'),
        ("chunk_size = 32 MiB", "chunk_size is not in quotes", 'write `chunk_size = "32 MiB"`'),
        ("backup.cron = 0 3 * * *", "backup.cron is not in quotes", 'write `backup.cron = "0 3 * * *"`'),
        ("backup.cron = @daily", "backup.cron is not in quotes", 'write `backup.cron = "0 0 * * *"`'),
        ("backup = @daily", "backup is not in quotes", 'write `backup = "@daily"`'),
        ("ttl = \u201c2h\u201d", "ttl is not in quotes", 'write `ttl = "2h"`'),
        ("archive = True", "archive is not in small letters", "write `archive = true`"),
        ("archive = FALSE", "archive is not in small letters", "write `archive = false`"),
        ("archive = yes", "archive is neither true nor false", "write `archive = true`"),
        ("archive = No", "archive is neither true nor false", "write `archive = false`"),
        ("tls = off", "tls is neither true nor false", '`tls = false`, or `tls = "off"`'),
        ("signing = None", "signing has no value", 'remove the line, or write `signing = "none"`'),
        ("pool = null", "pool has no value", "remove the line"),
        ("rpo =", "rpo has no value", "write one, or remove the line"),
        ('rpo = "2h",', "a comma follows the value", "remove the comma at the end"),
        ("archive = true, # note", "a comma follows the value", "remove the comma at the end"),
        ('rpo = "2h", user = "x"', "a comma follows the value", "each key in its own line"),
        ("port = 1 user = 2", "several keys", "each key in its own line"),
        ('rpo = "2h', "a quote of rpo is missing", 'write `rpo = "2h"`'),
        ("rpo = '2h", "a quote of rpo is missing", 'write `rpo = "2h"`'),
        ('rpo = 2h"', "a quote of rpo is missing", 'write `rpo = "2h"`'),
        ("port = 03306", "port is no number of TOML", "write `port = 3306`"),
        ("warn_at = .8", "warn_at is no number of TOML", "write `warn_at = 0.8`"),
        ("until = 2027-02-30", "until is no valid date", "write a day such as"),
        ('rpo: "2h"', "there is no `=` after rpo", "write `=` between `rpo` and its value"),
        ("my port = 3306", "the key is not one word", "write one word before `=`"),
        ("// a comment", "this is no comment", "begin a comment with `#`"),
        ("[clones", "the header of a section is not complete", "write `[clones]`"),
        ("[instance other]", "the header of a section is not complete", "write `[instance.other]`"),
        ("[[hooks]", "the header of a section is not complete", "write `[[hooks]]`"),
        ("contacts = [ann, bob]", "a text in the list is not in quotes", "put each text of the list in quotes"),
        ("contacts = [\n]\nemail = [\n  ann,\n]", "line 8: a text in the list", "put each text of the list in quotes"),
        ('contacts = ["ann" "bob"]', "the list in line 5 is not closed", "commas between its values, and `]`"),
        ('contacts = ["ann",', "the list in line 5 is not closed", "commas between its values, and `]`"),
        ('contacts = ["ann"\n[clones]', "line 6: the list in line 5 is not closed", "and `]` after the last one"),
        ("keep = { daily = 14", "the table in braces is not closed", "`}` at the end of the same line"),
        ("[instance.main]", "[instance.main] exists twice (first: line 2)", "put its keys into the first section"),
        ("[ instance . main ] # 2", "line 5: the section [instance.main] exists twice", "section, in line 2, and"),
        ('socket = "/x"', "socket has a value already (line 3)", "keep one of the lines 3 and 5"),
        ("keep = { daily = 3 }\nkeep.weekly = 4", "line 6: keep.weekly has a value already", "in one place"),
        ("keep = { daily = 3, daily = 4 }", "daily is in the table twice", "keep one value of `daily`"),
        ("keep = { daily = 3 }\n[instance.main.keep]", "[instance.main.keep] exists already", "remove this line"),
        ("= 3", "invalid statement", "write each key in its own line"),
    ],
)
def test_toml_mistake_is_named_with_line_and_repair(line: str, problem: str, repair: str) -> None:
    error = refused(line)
    assert problem in error.message
    assert repair in error.hint
    number = re.search(r"is not valid TOML: (line [5-8]): ", error.message)
    assert number is not None
    assert error.hint.startswith(f"{number[1]}: ")


WORDS = st.text("abcdefgMB0123456789./:@*-_ ", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(st.sampled_from(("rpo", "agent.backup", "url")), WORDS)
def test_repair_of_a_value_without_quotes_is_valid(key: str, value: str) -> None:
    try:
        tomllib.loads(f"{key} = {value}\n")
    except tomllib.TOMLDecodeError:
        for written in re.findall(r"`([^`]+ = [^`]+)`", refused(f"{key} = {value}").hint):
            assert tomllib.loads(written)


def secret_keys() -> Iterator[str]:
    """Yield the settings whose values or parts of them are secrets."""
    for found in pkgutil.iter_modules(zsnapdb.config.__path__):
        for model in vars(importlib.import_module(f"zsnapdb.config.{found.name}")).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                for name, field in model.model_fields.items():
                    if HIDDEN in metadata_of(field) or "SecretStr" in str(field.annotation):
                        yield name


@pytest.mark.parametrize(
    "key",
    sorted({*secret_keys(), "password", "main.password", "api_token", "secret_access_key", "passwd", "run", "start"}),
)
@pytest.mark.parametrize(
    "line",
    [
        "{} = hunter2",
        "x = {{ {} = hunter2, y = 1 }}",
        '{} = "hunter2',
        '{} = hunter2"',
        "{} = hunter2,",
        "{}: hunter2",
        "{} hunter2",
        "{} = [hunter2]",
        "{} = [\n  user=hunter2\n]",
        "{} = hunter2 # note",
        "{} = \u201chunter2\u201d",
        "{0} = 1\n{0} = 'hunter2'",
    ],
)
def test_toml_mistake_shows_no_secret(key: str, line: str) -> None:
    error = refused(line.format(key))
    assert "hunter2" not in error.message + error.hint


@pytest.mark.parametrize("line", ["url = s3://ann:hunter2@bucket", 'user = ann password = "hunter2"', "'hunter2"])
def test_toml_mistake_shows_no_password_in_other_values(line: str) -> None:
    error = refused(line)
    assert "hunter2" not in error.message + error.hint


@given(st.text("ab=[]{}\"'#,.\n \\\r\t1-T:@\x00", max_size=40))
def test_every_text_is_valid_toml_or_a_mistake_in_one_of_its_lines(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(ConfigError, match="is not valid TOML: line ") as caught:
            read_toml(text, "x")
        number = re.search(r"line (\d+)", caught.value.message)
        assert number is not None
        assert 1 <= int(number[1]) <= text.count("\n") + 1
        assert caught.value.hint
    else:
        assert read_toml(text, "x") == tomllib.loads(text)
