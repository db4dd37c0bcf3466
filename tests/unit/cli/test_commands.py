"""Each command is declared once, loaded when it is named, and reads its configuration once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command

from tests.unit.support.command_line import ENVIRONMENT
from tests.unit.support.counted_reads import reads
from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.cli import command_context, command_groups, notified_commands
from zsnapdb.cli.app import app
from zsnapdb.cli.commands import COMMANDS, Command, EvidenceKeeper
from zsnapdb.config.notifications import NotifiedJob
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone.expected_clone import GUID_VARIABLE
from zsnapdb.jobs.health import evidence_records


def made_commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each command below the group with its words."""
    for name, command in group.commands.items():
        here = (*words, name)
        if hasattr(command, "commands"):
            yield from made_commands(command, here)
        else:
            yield " ".join(here), command


MADE = dict(made_commands(get_command(app)))
DECLARED = {words: one for words, one in COMMANDS.items() if isinstance(one, Command)}


def test_what_is_declared_of_a_command_fits_its_options_and_the_configuration() -> None:
    assert len(DECLARED) > 100
    assert MADE.keys() == DECLARED.keys()
    for words, entry in DECLARED.items():
        names = {parameter.name for parameter in MADE[words].params}
        assert not entry.notifies or words in set(NotifiedJob), words
        assert entry.evidence is not EvidenceKeeper.OF_INSTANCE or {"config", "instance"} <= names, words
        assert entry.evidence is not EvidenceKeeper.OF_HOST or "config" in names, words
        assert entry.evidence is not EvidenceKeeper.OF_CLONE or {"config", "name"} <= names, words
        assert entry.only_with is None or entry.only_with in names, words
        assert bool(entry.documents) <= ("json" in names), words


READS = "it reads, and shows no rows of the server"
INSIDE = "it writes its evidence where it knows the clone or the keys"
SERVED = "the commands that it starts write evidence"
FLEET = "the hosts that run the jobs write evidence"
LEASE = "a program sends it every few seconds, for a clone that it was given"
WITHOUT_EVIDENCE = {
    **dict.fromkeys(("list", "show", "status", "runbook", "drills", "sizing", "grants", "example", "schema"), READS),
    **dict.fromkeys(("completion", "binlog status", "binlog find", "report show", "report records"), READS),
    **dict.fromkeys(("report verify", "agent status", "key show", "config check", "config show"), READS),
    **dict.fromkeys(("clone addresses", "clone list", "clone show", "clone logs", "vm list", "vm base list"), READS),
    **dict.fromkeys(("clone branch list", "clone branch log", "token list", "token keys", "advise"), READS),
    **dict.fromkeys(("clone create", "clone pool", "clone keep", "clone hold", "reap", "key generate", "init"), INSIDE),
    **dict.fromkeys(("serve", "serve-helper", "mcp", "agent run"), SERVED),
    **dict.fromkeys(("fleet worker", "fleet control", "fleet dev", "fleet apply", "fleet run", "fleet pause"), FLEET),
    **dict.fromkeys(("fleet resume", "fleet cancel", "fleet history", "fleet status"), FLEET),
    **dict.fromkeys(("clone heartbeat", "clone beat"), LEASE),
    **dict.fromkeys(("clone connect", "clone tunnel"), "the evidence of the clone says who got its login"),
    "clone branch diff": "the rows are those of a clone whose evidence says who got it",
    "verify": "it changes nothing, and its result is a document of the repository",
    "snapshot": "it also works without the store, every few minutes; `zpool history` has it",
    "binlog archive": "it only adds, all the time, and the archive itself says what was added",
    "setup": "it makes the configuration without which no log is known; the next command records the policy",
    "notify test": "it sends a message",
    "notify failed": "it sends a message",
    "token exchange": "the helper runs it for a log-in",
}
"""Why a command writes no evidence. Every other command changes or removes something, or gives access to data."""


def test_a_command_writes_evidence_or_has_a_reason() -> None:
    assert {words for words, entry in DECLARED.items() if entry.evidence is None} == set(WITHOUT_EVIDENCE)
    page = (Path(command_groups.__file__).parents[2] / "docs" / "health.md").read_text()
    kept = page[page.index("These commands write evidence records") : page.index("Evidence records are numbered")]
    verbs = {words.split()[0] for words, entry in DECLARED.items() if entry.evidence is not None and not entry.hidden}
    assert [verb for verb in sorted(verbs) if f"`{verb}" not in kept] == []


@pytest.mark.parametrize("words", [words for words, one in DECLARED.items() if one.evidence is EvidenceKeeper.OF_HOST])
def test_an_action_on_the_host_is_recorded_for_every_instance(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "zsnapdb.toml"
    text = CONFIGURATION.format(folder=tmp_path)
    other = text[: text.index("[repository")].replace("instance.main", "instance.other")
    file.write_text(text + other)
    recorded: list[tuple[list[str], str]] = []

    @contextlib.contextmanager
    def record(instances: Sequence[Instance], job: str, _command: object) -> Iterator[list[object]]:
        recorded.append(([one.name for one in instances], job))
        yield []

    monkeypatch.setattr(evidence_records, "recorded_keys", record)
    only = {DECLARED[words].only_with or "": True}
    run = notified_commands.wrap_with_notifications(words.split()[0], DECLARED[words], lambda **_: None)
    run(config=file, plan=True, **only)
    assert recorded == []
    run(config=file, **only)
    assert recorded == [(["main", "other"], words.split()[0])]


def test_the_sentence_of_a_command_in_the_help_of_its_group_is_that_of_its_own_help() -> None:
    read = {words: command_groups._docstring(entry.run) for words, entry in DECLARED.items()}
    assert read == {words: command.help for words, command in MADE.items()}


OF_COMMANDS = {f"zsnapdb.cli.{entry.run.rpartition('.')[0]}" for entry in DECLARED.values()} - {
    # It completes the words of options, too.
    "zsnapdb.cli.completion"
}


def loaded(*words: str, **variables: str) -> set[str]:
    """Return the modules that a command line has loaded at its end."""
    code = (
        "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = {['zsnapdb', *words]}; from zsnapdb.cli.app import main; main()"
    )
    variables = {**ENVIRONMENT, **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", ["--help", "clone --help", "vm base --help", "no-such-command"])
def test_the_help_of_a_group_loads_no_command_and_no_job(words: str) -> None:
    known = loaded(*words.split())
    assert known & OF_COMMANDS == set()
    assert [name for name in known if name.startswith(("zsnapdb.jobs", "zsnapdb.config", "pydantic"))] == []


def test_a_command_loads_no_module_of_another_one() -> None:
    known = loaded("list", "--help")
    assert known & OF_COMMANDS == {"zsnapdb.cli.inventory"}
    assert [name for name in known if name.startswith("zsnapdb.jobs")] == []


CONFIGURATION = """
[instance.main]
socket = "{folder}/server.sock"
volumes = {{ data = "tank/data" }}
repository = "here"
[repository.here]
url = "file://{folder}/repository"
evidence = true
"""
WITHOUT_END = {
    "agent",
    "fleet worker",
    "fleet control",
    "fleet dev",
    "serve",
    "serve-helper",
    "clone hold",
    "clone keep",
}
"""These go on until a signal, and read the configuration again by design."""
OTHER_FILE = {"fleet status", "setup"}
"""The first reads the configuration of a fleet; the second writes the configuration."""
VALUES = {"instance": "main", "begin": "latest", "table": "a.b", "length": "1h", "sql": "SELECT 1"}


def line_of(words: str) -> list[str]:
    """Return a command line with values for what it must have."""
    line = words.split()
    for one in MADE[words].params:
        if one.required:
            value = VALUES.get(one.name, "x")
            line += [value] if one.param_type_name == "argument" else [one.opts[0], value]
    return line


def test_a_command_reads_its_configuration_once(tmp_path: Path) -> None:
    """Else the evidence could be in the log of another repository than that which the command has changed."""
    (tmp_path / "repository").mkdir()
    file = tmp_path / "zsnapdb.toml"
    file.write_text(CONFIGURATION.format(folder=tmp_path))
    reading = [
        words
        for words, made in MADE.items()
        if any(one.name == "config" for one in made.params) and words not in WITHOUT_END | OTHER_FILE
    ]
    numbers = reads([line_of(words) for words in reading], {**ENVIRONMENT, "ZSNAPDB_CONFIG": str(file)})
    found = dict(zip(reading, numbers, strict=True))
    assert {words: number for words, number in found.items() if number > 1} == {}
    assert len([number for number in numbers if number]) > 60


def test_a_configuration_that_could_not_be_read_is_not_read_again(tmp_path: Path) -> None:
    """Else a command could act by a configuration by which no evidence was kept."""
    file = tmp_path / "zsnapdb.toml"
    with command_context.cached_configuration():
        with pytest.raises(ConfigError):
            command_context.configuration(file)
        file.write_text(CONFIGURATION.format(folder=tmp_path))
        with pytest.raises(ConfigError):
            command_context.configuration(file)
    assert command_context.configuration(file).instance.keys() == {"main"}


def test_each_command_on_a_clone_accepts_its_guid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GUID_VARIABLE, raising=False)
    # The clone of `clone tunnel` is on another host.
    about = {
        words: command
        for words, command in MADE.items()
        if words.startswith("clone ")
        and any(one.metavar == "NAME" and one.required for one in command.params)
        and words != "clone tunnel"
    }
    assert {words for words, command in about.items() if any("--guid" in one.opts for one in command.params)} == {
        *about
    }
    assert not any("--guid" in one.opts for words, one in MADE.items() if words not in about for one in one.params)
    seen: list[str | None] = []
    option = next(one for one in about["clone stop"].params if one.name == "guid")
    with click.Context(click.Command("stop", params=[option], callback=lambda: None)) as context:
        option.handle_parse_result(context, {"guid": "4711"}, [])
        seen.append(os.environ.get(GUID_VARIABLE))
        with pytest.raises(UsageError, match="is not a GUID"):
            option.handle_parse_result(context, {"guid": "../x"}, [])
    assert [*seen, os.environ.get(GUID_VARIABLE)] == ["4711", None]
