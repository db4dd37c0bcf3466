"""People without root may ask `zsnapdb-clone` for a few words with values of a known form, and for nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, origin
from zsnapdb.base.errors import ConfigError, NotAllowedError, UnknownNameError, UsageError
from zsnapdb.base.quantities import parse_duration
from zsnapdb.cli import main_process, sudo_cli
from zsnapdb.cli.sudo_cli import Caller, caller_of, clean_environment
from zsnapdb.config import settings as configuration
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue
from zsnapdb.planning.restore.point_forms import ago, parse_target
from zsnapdb.verbs.delegation import DelegatedRequest, parse
from zsnapdb.verbs.requests import COMMANDS, FORMER_NAMES

RULE = Path(__file__).parents[3] / "configs" / "sudoers.d" / "zsnapdb-clone"
DANGEROUS = (
    "--config",
    "--binary",
    "--bind",
    "--owner",
    "--admin",
    "--with-foreign-snapshots",
    "--name",
    "--repository",
)


def test_a_clone_is_made_for_the_caller() -> None:
    request = parse(["create", "main", "mine", "--ttl", "2h", "--mask", "--from=latest", "--json"], "ann")
    assert request.words == (
        *("clone", "create", "--name=mine", "--owner=ann", "--ttl=2h", "--mask", "--from=latest", "--json", "main"),
    )
    assert request.wants_login_file


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["list"], ("clone", "list")),
        (["stop", "mine", "--plan"], ("clone", "stop", "--plan", "mine")),
        (["extend", "--ttl=1d", "mine"], ("clone", "extend", "--ttl=1d", "mine")),
        (["login", "mine", "--dsn"], ("clone", "login", "--dsn", "mine")),
        (["login", "--new", "mine", "--json"], ("clone", "login", "--new", "--json", "mine")),
        (["destroy", "mine"], ("clone", "destroy", "mine")),
    ],
)
def test_words_become_words_of_zsnapdb(argv: list[str], words: tuple[str, ...]) -> None:
    assert parse(argv, "ann").words == words


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", [*DANGEROUS, *(name[:-1] for name in DANGEROUS), "--conf", "--c", "-c", "--"])
def test_no_command_takes_an_option_that_names_a_file_a_program_an_address_or_an_owner(
    command: str, option: str
) -> None:
    positional = ["main", "mine"][-len(COMMANDS[command].words) :] if COMMANDS[command].words else []
    for words in ([option, "/tmp/x"], [f"{option}=/tmp/x"], [option]):
        for argv in ([command, *positional, *words], [command, *words, *positional]):
            with pytest.raises(UsageError):
                parse(argv, "ann")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["backup"],
        ["clone", "list"],
        ["--config=/tmp/x", "list"],
        ["create", "main"],
        ["create", "main", "a", "b"],
        ["create", "main", "--name=x"],
        ["create", "../main", "mine"],
        ["create", "main", "mi/ne"],
        ["create", "main", "mine", "--ttl"],
        ["create", "main", "mine", "--ttl=--config"],
        ["create", "main", "mine", "--ttl", "--config=/tmp/x"],
        ["create", "main", "mine", "--from", "live"],
        ["create", "main", "mine", "--at", "--config"],
        ["create", "main", "mine\n"],
        ["create", "main", "mine", "--mask=1"],
        ["destroy", ""],
        ["destroy", "MINE"],
        ["list", "x"],
    ],
)
def test_what_is_not_known_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv, "ann")


WORDS = st.one_of(
    st.sampled_from(
        [*COMMANDS, "main", "mine", "--json", "--plan", "--ttl", "2h", "--from", "latest", "--at", *DANGEROUS]
    ),
    st.text(max_size=12),
    st.builds(
        "{}={}".format, st.sampled_from(["--ttl", "--from", "--at", "--profile", *DANGEROUS]), st.text(max_size=12)
    ),
)


@given(st.lists(WORDS, max_size=6))
def test_whatever_is_asked_for_no_word_but_the_known_ones_reaches_zsnapdb(argv: list[str]) -> None:
    try:
        request: DelegatedRequest = parse(argv, "ann")
    except UsageError:
        return
    command = COMMANDS[request.command]
    runs = tuple(command.runs.split())
    assert request.words[: len(runs)] == runs
    for word in request.words[len(runs) :]:
        name, _, value = word.partition("=")
        if word.startswith("-"):
            assert name in command.options or word in (f"--name={request.clone}", "--owner=ann")
            form = command.options.get(name)
            assert form is None or form.fullmatch(value)
        else:
            assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", word)


HOSTILE = st.sampled_from(
    (
        *("", "\0", "@", "@latest", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2262-04-11T23:47:16Z"),
        *("2016-12-31T23:59:60Z", "NaN", "inf", "9" * 400, "-1h", "1e9h", "999999999w", "0s", " ", "x" * 1001),
        *(
            "\u0662\u0660\u0662\u0666-01-01",
            "latest",
            "--plan",
            "2026-01-01 00:00 ../../etc/passwd",
            "before-9999999999",
        ),
    )
)


@given(st.sampled_from(("--at", "--from", "--ttl", "--heartbeat")), HOSTILE | st.text(max_size=40))
def test_whatever_is_given_as_a_time_ends_as_wrong_usage_or_as_a_point(option: str, text: str) -> None:
    """The pattern of the word lets it pass or not; then the command reads it, and knows no other error."""
    with contextlib.suppress(UsageError):
        request = parse(["create", "main", "mine", f"{option}={text}"], "ann")
        (value,) = (word.partition("=")[2] for word in request.words if word.startswith(f"{option}="))
        if option == "--at":
            parse_target(ago(value, datetime.now(UTC)))
        elif option != "--from":
            parse_duration(value)


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    """A pool with a clone of Ann, and one of somebody with a secret."""
    pool, base = ClonePool(), f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
    pool.install(monkeypatch)
    pool.snapshot(base)
    pool.clone("mine", base, owner="ann")
    pool.clone(
        "layoffs", base, owner="boss", label="merger-with-acme", set="acme source", root="/nowhere/acme", port="23999"
    )
    configured = configuration.parse(
        f'[repository.r]\nurl = "file://{tmp_path}/store"\n[instance.main]\nrepository = "r"\n'
        f'volumes = {{ data = "{SOURCE}" }}\n[clones]\ndataset = "{HOME}"\nmount_root = "{tmp_path}/clones"\n',
        "the test",
    )
    monkeypatch.setattr("zsnapdb.config.settings.load", lambda *_: configured)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sudo_cli, "caller_of", lambda _: Caller("ann", 1000, 1000))
    monkeypatch.setattr(main_process, "record_for_administrators", lambda _: None)
    monkeypatch.chdir(tmp_path)
    return pool


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_names_anything_of_others(
    crowded: ClonePool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str, json: Any
) -> None:
    """What is another's is as what is not there: the same words, code, and programs that are run."""
    seen, counted = [], list[str]()

    def counting(argv: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        counted.append(argv[1])
        return crowded.run(argv, **more)

    monkeypatch.setattr("zsnapdb.base.program_start.run", counting)
    for name in ("merger-with-acme", "layoffs", "acme", "nothing-of-that"):
        words = {"create": ["main", name], "list": []}.get(command, [name])
        monkeypatch.setattr(sys, "argv", ["zsnapdb-clone", command, *words, *json])
        counted.clear()
        code = main_process.exit_code_of(sudo_cli._run)
        said = "".join(capfd.readouterr())
        for secret in {"merger-with-acme", "layoffs", "acme", "boss", "23999"} - {name}:
            assert secret not in said.replace(name, "NAME"), said
        seen.append((code, said.replace(name, "NAME"), len(counted)))
    assert command == "list" or all(code for code, _, _ in seen)
    # Names of clones are for the whole host: that one is taken is told.
    assert len(set(seen)) == 1 or command == "create", seen


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"create", "list", "keep"}))
@pytest.mark.parametrize("options", [(), ("--plan",), ("--json",)], ids=["text", "plan", "json"])
def test_a_command_on_an_own_clone_names_nobody_who_made_a_clone_of_it(
    crowded: ClonePool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    options: tuple[str, ...],
) -> None:
    commit = crowded.commit(f"{HOME}/mine/r1", "20261121T100000Z-000c")
    crowded.things[commit].properties |= {"zsnapdb:origin": origin().encode(), "zsnapdb:role": "data"}
    crowded.things[f"{HOME}/layoffs/r1"].origin = commit
    monkeypatch.setattr(sys, "argv", ["zsnapdb-clone", command, "mine", *options])
    main_process.exit_code_of(sudo_cli._run)
    said = "".join(capfd.readouterr())
    assert not {one for one in ("merger-with-acme", "layoffs", "acme", "boss", "23999") if one in said}, said
    if (command, options) == ("destroy", ("--plan",)):
        assert "destroy clone mine" in said


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("error", [ConfigError("unknown instance acme", hint="see layoffs"), ValueError("acme")])
@pytest.mark.parametrize("place", ["zsnapdb.config.settings.load", "zsnapdb.jobs.clone.catalogue.require_owner"])
def test_error_before_the_command_names_nothing_of_others(
    crowded: ClonePool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: str,
    error: Exception,
    json: tuple[str, ...],
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(place, failing)
    monkeypatch.setattr(sys, "argv", ["zsnapdb-clone", "stop", "mine", *json])
    assert main_process.exit_code_of(sudo_cli._run) == getattr(error, "exit_code", 1)
    said = "".join(capfd.readouterr())
    assert said
    assert not {one for one in ("acme", "layoffs") if one in said}, said


def test_no_variable_of_the_caller_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ("PYTHONPATH", "AWS_PROFILE", "ZSNAPDB_SUBJECT")
    for name in ("ZSNAPDB_CONFIG", "ZSNAPDB_CLONE_CREATE_BINARY", "_ZSNAPDB_COMPLETE", *others):
        monkeypatch.setenv(name, "/tmp/x")
    monkeypatch.setenv("PATH", "/tmp/x")
    monkeypatch.setenv("LANG", "C")
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        clean_environment()
        kept = dict(os.environ)
    assert "/tmp/x" not in kept.values()
    assert kept["LANG"] == "C"
    assert set(kept) <= {*sudo_cli._KEPT, "PATH"}


def test_the_caller_is_whom_sudo_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert caller_of({"SUDO_UID": "65534", "SUDO_USER": "root"}).name == "nobody"
    assert caller_of({}).name == "root"
    for uid in ("x", "-1", "4123456789"):
        with pytest.raises(NotAllowedError):
            caller_of({"SUDO_UID": uid})


def test_without_root_one_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotAllowedError, match="you may not"):
        caller_of({"SUDO_UID": "0"})


def test_a_denial_of_the_system_is_told_as_such_to_everybody_but_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> ConfigError:
        error = ConfigError("reading the configuration x: Permission denied", hint="write one")
        error.__cause__ = PermissionError(13, "Permission denied")
        return error

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told = main_process._for_this_account(denied())
    assert told.message == "you may not do this: reading the configuration x: Permission denied"
    assert told.hint.startswith("run the command as root")
    assert told.exit_code == ConfigError.exit_code
    other = ConfigError("no such key", hint="remove it")
    assert main_process._for_this_account(other).message == "no such key"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main_process._for_this_account(denied()).hint == "write one"


@pytest.mark.parametrize("cause", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")])
@pytest.mark.parametrize("command", ["list", "login", "reset", "extend", "create", "destroy"])
def test_clone_command_with_url_names_remote_ways(
    monkeypatch: pytest.MonkeyPatch, command: str, cause: OSError
) -> None:
    def hint() -> str:
        error = ConfigError(f"reading the configuration x: {cause.strerror}", hint="write one")
        error.__cause__ = cause
        return main_process._for_this_account(error).hint

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["zsnapdb", "clone", command])
    monkeypatch.delenv("ZSNAPDB_URL", raising=False)
    assert "ZSNAPDB_URL" not in hint()
    monkeypatch.setenv("ZSNAPDB_URL", "https://clones.example.org")
    assert "only `zsnapdb clone tunnel` and `zsnapdb mcp` use ZSNAPDB_URL" in hint()
    monkeypatch.setattr(sys, "argv", ["zsnapdb", "backup"])
    assert "ZSNAPDB_URL" not in hint()


def test_the_rule_allows_this_program_alone_and_no_variables() -> None:
    lines = [line for line in RULE.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == [
        "Cmnd_Alias ZSNAPDB_CLONE = /usr/bin/zsnapdb-clone",
        "Defaults!ZSNAPDB_CLONE env_reset, !setenv",
        "%zsnapdb-clone ALL = (root) NOPASSWD: NOSETENV: ZSNAPDB_CLONE",
    ]


@pytest.mark.skipif(shutil.which("visudo") is None, reason="sudo is not installed")
def test_visudo_accepts_the_rule(tmp_path: Path) -> None:
    file = tmp_path / "rule"
    file.write_text(RULE.read_text())
    file.chmod(0o440)
    done = subprocess.run(["visudo", "-c", "-f", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["destroy", "reset", "extend", "start", "stop", "login"])
def test_a_command_is_told_whose_clone_is_meant_and_changes_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """The clone of another has the name when the command comes to it, after whose it is was looked at."""
    pool, base = ClonePool(), f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
    pool.install(monkeypatch)
    pool.snapshot(base)
    pool.clone("mine", base, owner="ann")
    settings = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))
    monkeypatch.setattr("zsnapdb.config.settings.load", lambda *_: settings)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["zsnapdb-clone", command, "mine", *(["--dsn"] if command == "login" else [])])
    monkeypatch.setattr(sudo_cli, "caller_of", lambda _: Caller("ann", 1000, 1000))
    monkeypatch.chdir(tmp_path)
    asked = catalogue.require_owner

    def then_taken(*words: Any) -> None:
        asked(*words)
        pool.clone("mine", base, owner="bob")

    monkeypatch.setattr("zsnapdb.jobs.clone.catalogue.require_owner", then_taken)
    with pytest.raises(UnknownNameError, match="there is no clone mine"):
        sudo_cli._run()
    assert pool.commands == []


@pytest.mark.parametrize(("former", "present"), sorted(FORMER_NAMES.items()))
def test_former_name_of_a_command_runs_the_present_one(former: str, present: str) -> None:
    assert parse([former, "mine", "--json"], "ada") == parse([present, "mine", "--json"], "ada")
