"""Secrets that are planted everywhere appear in nothing that a run prints, stores, or passes to a program."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.command_line import ENVIRONMENT, zsnapdb
from tests.unit.support.secrets import HOOK_SECRET, PASSWORD, PLANTED, S3_SECRET, S3_TOKEN, VARIABLES, check_clean
from zsnapdb import hooks
from zsnapdb.base.errors import ConfigError
from zsnapdb.base.program_start import for_programs, for_site, for_terminal, is_secret_name
from zsnapdb.config.settings import parse
from zsnapdb.hooks import Hook, When
from zsnapdb.mysql.process import process_managers
from zsnapdb.zfs import command


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("planted")
def test_no_program_that_is_started_gets_a_secret_of_the_environment() -> None:
    printed = [
        command.run(["env"]),
        process_managers.run(["env"], timeout=30),
        hooks.run(Hook(When.BEFORE, ("/usr/bin/env",), 30), {"ZSNAPDB_INSTANCE": "main"}),
        str(for_programs()),
        str(for_terminal()),
    ]
    for text in printed:
        assert "PATH=" in text.replace("'PATH': ", "PATH=")
        check_clean(text.encode(), [value.encode() for value in PLANTED], "the environment")


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("MYSQL_PASS", True),
        ("B2_APPLICATION_KEY", True),
        ("AZURE_STORAGE_KEY", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("DATABASE_URL", True),
        ("XDG_RUNTIME_DIR", False),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_SESSION_TOKEN", True),
        ("MYSQL_PWD", True),
        ("DB_PASSWORD", True),
        ("PATH", False),
        ("PWD", False),
        ("OLDPWD", False),
        ("AWS_REGION", False),
        ("ZSNAPDB_CONFIG", False),
    ],
)
def test_names_say_which_variables_are_secrets(monkeypatch: pytest.MonkeyPatch, name: str, is_secret: bool) -> None:
    monkeypatch.setenv(name, "x")
    assert is_secret_name(name) == is_secret
    assert (name in for_site()) != is_secret


def test_a_password_in_a_variable_that_programs_would_get_is_refused() -> None:
    text = (
        '[instance.main]\nsocket = "/x"\npassword_env = "DB_LOGIN"\nrepository = "r"\n[repository.r]\nurl = "s3://b"\n'
    )
    with pytest.raises(ConfigError, match="must contain PASS, SECRET or TOKEN"):
        parse(text, "test")


INSTANCE = '[instance.main]\nsocket = "/x"\nrepository = "r"\n'
REPOSITORY = '[repository.r]\nurl = "s3://b"\n'


@pytest.mark.parametrize(
    "wrong",
    [
        INSTANCE + f'port = "{PASSWORD}"\n' + REPOSITORY,
        INSTANCE + f'password = "{PASSWORD}"\n' + REPOSITORY,
        INSTANCE + f'[repository.r]\nurl = "s3://key:{S3_SECRET}@bucket/prefix"\n',
        INSTANCE + REPOSITORY + f'endpoint = "https://key:{S3_SECRET}@s3.example"\n',
        INSTANCE + REPOSITORY + f'[repository.r.encryption]\nrecipients = ["{S3_SECRET}"]\nsigners = ["{S3_SECRET}"]\n',
        INSTANCE + f'[instance.main.masking]\ncanaries = [["{HOOK_SECRET}"]]\n' + REPOSITORY,
        INSTANCE + f'[[instance.main.hooks]]\nwhen = "{HOOK_SECRET}"\nrun = "/x"\n' + REPOSITORY,
        f'[instance.main]\npassword = "{PASSWORD}',
    ],
)
def test_an_error_of_the_configuration_shows_no_value_not_even_in_its_traceback(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(wrong, "test")
    text = "".join(traceback.format_exception(caught.value))
    check_clean(text.encode(), [value.encode() for value in PLANTED], "the error")


def configured(tmp_path: Path) -> tuple[Path, Path]:
    """Return a configuration of a server and a store that do not answer, and the folder of a `zfs` that fails.

    The `zfs` records its command line and environment in the file `recorded`.
    """
    recorded = tmp_path / "recorded"
    program = tmp_path / "bin" / "zfs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {recorded}\nenv >> {recorded}\nexit 1\n')
    program.chmod(0o755)
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[default]\naws_access_key_id = AKIA\naws_secret_access_key = {S3_SECRET}\naws_session_token = {S3_TOKEN}\n"
    )
    credentials.chmod(0o600)
    config = tmp_path / "zsnapdb.toml"
    config.write_text(
        f'[instance.main]\nhost = "127.0.0.1"\nport = 1\npassword_env = "ZSNAPDB_PASSWORD"\nrepository = "r"\n'
        f'volumes = {{ data = "tank/data" }}\n[repository.r]\nurl = "s3://bucket/x"\nendpoint = "http://127.0.0.1:1"\n'
        f'region = "us-east-1"\npatience = "0s"\ncredentials_file = "{credentials}"\n'
    )
    return config, program.parent


ENGINE_VERBS = (
    ("backup", "main"),
    ("snapshot", "main"),
    ("verify", "main"),
    ("prune", "main"),
    ("drill", "main"),
    ("restore", "main"),
    ("clone", "create", "main"),
    ("clone", "prepare", "main"),
    ("clone", "pool", "main"),
    ("clone", "reset", "web"),
    ("clone", "commit", "web"),
    ("clone", "destroy", "web"),
)
"""What an engine runs on hosts, and keeps the errors of."""


@pytest.mark.parametrize("words", ENGINE_VERBS, ids=lambda words: "-".join(words[:2]))
def test_what_an_engine_reads_on_stderr_is_lines_of_json_without_secrets(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    config, programs_there = configured(tmp_path)
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-0123abcd"
    path = f"{programs_there}:/usr/bin:/bin"
    done = zsnapdb(*words, "--json", "--json-progress", "--once", run, config=str(config), **VARIABLES, PATH=path)
    check_clean((done.stdout + done.stderr).encode(), [value.encode() for value in PLANTED], words)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (lines[-1]["event"], lines[-1]["run_id"], lines[-1]["exit_code"]) == ("ended", run, done.returncode)
    assert {one["run_id"] for one in lines} == {run}
    if done.returncode:
        assert json.loads(done.stdout)["retry"] in ("again", "never", "twice")


def test_a_command_that_fails_prints_no_secret_and_passes_none_on(tmp_path: Path) -> None:
    config, programs_there = configured(tmp_path)
    recorded = tmp_path / "recorded"
    env = {**ENVIRONMENT, **VARIABLES, "ZSNAPDB_CONFIG": str(config), "PATH": f"{programs_there}:/usr/bin:/bin"}
    env |= {"AWS_MAX_ATTEMPTS": "1"}
    beside = tmp_path / "beside.toml"
    (tmp_path / "store").mkdir()
    beside.write_text(config.read_text().replace("s3://bucket/x", f"file://{tmp_path}/store"))
    for words in (
        ["config", "check"],
        ["doctor", "--json"],
        ["list"],
        ["verify", "--json"],
        ["init", "--config", str(beside)],
        ["list", "--config", str(beside)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "zsnapdb", *words], capture_output=True, env=env, timeout=120, check=False
        )
        assert b"Traceback" not in done.stderr
        check_clean(done.stdout + done.stderr, [value.encode() for value in PLANTED], words)
    assert recorded.exists()
    check_clean(recorded.read_bytes(), [value.encode() for value in PLANTED], "a started zfs")


def test_keys_are_printed_by_their_public_parts_alone(tmp_path: Path) -> None:
    done = zsnapdb("key", "generate", "--identity", str(tmp_path / "i"), "--signing-key", str(tmp_path / "s"), "--json")
    assert done.returncode == 0
    for file in ("i", "s"):
        assert (tmp_path / file).stat().st_mode & 0o777 == 0o600
        secret = [line for line in (tmp_path / file).read_text().splitlines() if line[0] not in "#-"]
        check_clean((done.stdout + done.stderr).encode(), [line.encode() for line in secret], "key generate")
