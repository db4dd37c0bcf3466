"""Each command has examples that its parser accepts, in its help and in its manual page; values are completed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter
from tools.references.commands import commands
from tools.references.man_pages import escaped, pages
from typer.main import get_command

from tests.unit.cli.test_printed_commands import complaint
from tests.unit.support.command_line import zsnapdb
from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.base.gtid import GtidPosition
from zsnapdb.base.patterns import INSTANCE, is_dataset, is_subject
from zsnapdb.base.quantities import parse_duration, parse_size
from zsnapdb.cli.app import app
from zsnapdb.cli.commands import COMMANDS, Command
from zsnapdb.cli.report import _day
from zsnapdb.cli.schema import schema_of
from zsnapdb.config.effective import effective, matching
from zsnapdb.config.notifications import TARGET_NAME
from zsnapdb.config.repository import parse_address
from zsnapdb.config.serve import ServeSettings
from zsnapdb.config.services import FleetVerb
from zsnapdb.config.settings import load
from zsnapdb.jobs.clone.clone_info import is_clone_name
from zsnapdb.jobs.repository.sizing import parse_daily, parse_keep, parse_prices
from zsnapdb.jobs.setup import examples
from zsnapdb.planning.binlog.changes import parse_kinds
from zsnapdb.planning.clone.branches import is_branch_name
from zsnapdb.planning.fleet.overview import Filter
from zsnapdb.planning.fleet.schedule_plan import JobFilter
from zsnapdb.planning.repository.archive_classes import parse_tier
from zsnapdb.planning.restore.point_forms import ago, parse_target
from zsnapdb.planning.sql_quoting import parse_table, refusal_of
from zsnapdb.planning.vm.request import names
from zsnapdb.serve.tokens import StoredToken

DECLARED = {words: one for words, one in COMMANDS.items() if isinstance(one, Command) and not one.hidden}
COMPLETED = {"INSTANCE", "REPOSITORY", "BACKUP", "BACKUP...", "TARGET"}
"""The metavars of values that a shell can complete."""


@pytest.mark.parametrize("words", DECLARED)
def test_examples_of_a_command_are_parsed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    declared = DECLARED[words].examples
    assert 1 <= len(declared) <= 3
    root = get_command(app)
    for example in declared:
        given = shlex.split(example)
        assert given[: len(words.split())] == words.split()
        assert len(example) <= 90
        assert complaint(root, given) is None, example


def is_accepted(check: Callable[[str], object], value: str) -> bool:
    """Return whether a check of a command neither refuses the value nor returns False."""
    try:
        return check(value) is not False
    except (UsageError, ConfigError, ValueError):
        return False


def is_name(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def is_valid_for(model: type[BaseModel], field: str) -> Callable[[str], object]:
    """Return the check of a value by the type of a field."""
    known = model.model_fields[field]
    annotation: Any = Annotated[known.annotation, None, *known.metadata]
    return TypeAdapter(annotation).validate_python


def parse_point(text: str) -> object:
    return parse_target(ago(text, datetime(2026, 11, 29, tzinfo=UTC)))


EXAMPLE = Path(__file__).parents[3] / "configs" / "zsnapdb.example.toml"
CHECKS: dict[str, Callable[[str], object]] = {
    "A": is_branch_name,
    "B": is_branch_name,
    "BACKUP": parse_point,
    "BASE": is_clone_name,
    "BRANCH": is_branch_name,
    "DATASET": is_dataset,
    "DAY": _day,
    "DURATION": parse_duration,
    "FILTER": JobFilter.parse,
    "GTID": GtidPosition.parse,
    "INSTANCE": is_name(INSTANCE),
    "ISSUER": TypeAdapter(get_args(ServeSettings.model_fields["issuer"].annotation)[0]).validate_python,
    "KEY": lambda text: bool(matching(tuple(effective(load(EXAMPLE), {})), text)),
    "KINDS": parse_kinds,
    "LIST|FILE": parse_prices,
    "MOMENT": parse_point,
    "NAME": is_clone_name,
    "NEW": is_clone_name,
    "POINT": parse_point,
    "RATE": parse_daily,
    "REPOSITORY": is_name(INSTANCE),
    "RULES": parse_keep,
    "SCHEMA.TABLE": parse_table,
    "SIZE": parse_size,
    "SOURCE": is_clone_name,
    "SQL": lambda text: refusal_of(text) == "",
    "SUBJECT": is_subject,
    "TARGET": is_name(TARGET_NAME),
    "TEMPLATE": lambda text: names(text, 3),
    "TIER": parse_tier,
    "TIME": parse_duration,
    "TOKEN": is_valid_for(StoredToken, "id"),
    "VERB": FleetVerb,
    "[SCHEMA.]TABLE": parse_table,
    "example NAME": examples.find,
    "fleet status FILTER": Filter.parse,
    "schema COMMAND": schema_of,
    "setup ADDRESS": parse_address,
}
"""The own check of a command for values with a metavar; "COMMAND METAVAR" is that of a single command."""
FREE = {
    "-- COMMAND": "any program",
    "serve ADDRESS": "the socket refuses it",
    "DOMAIN": "libvirt knows it",
    "FILE": "a path",
    "FILE.prom": "a path",
    "FILE|URL": "a path",
    "HOST": "ssh resolves it",
    "HOW": "checked by the parser",
    "ID": "latest, or the id of a local set",
    "JOB": "the agent's configuration has it",
    "N": "checked by the parser",
    "PID": "checked by the parser",
    "SHELL": "checked by the parser",
    "TEXT": "any text",
    "UNIT": "systemd knows it",
    "flavour": "checked by the parser",
}
"""Metavars of values without a check of their own, with the reason."""


def values_of(words: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield the values of an example, each with the key of its check in CHECKS or FREE."""
    root: Any = get_command(app)
    context = root.make_context("zsnapdb", shlex.split(example))
    while hasattr(context.command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE" or isinstance(value, bool):
            continue
        metavar = parameter.metavar or parameter.name
        own = f"{words} {metavar}"
        key = own if own in {*CHECKS, *FREE} else metavar
        parts = [" ".join(value)] if metavar == "COMMAND" else value if isinstance(value, tuple | list) else [value]
        yield from ((key, str(part)) for part in parts)


@pytest.mark.parametrize("words", DECLARED)
def test_values_of_examples_pass_the_checks_of_the_command(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for example in DECLARED[words].examples:
        for key, value in values_of(words, example):
            assert (key in CHECKS) != (key in FREE), key
            assert key in FREE or is_accepted(CHECKS[key], value), f"{example}: {key} {value}"


def test_value_that_a_command_refuses_is_seen() -> None:
    refused = {"SUBJECT": "ann", "ISSUER": "https://login.example.com", "SIZE": "500GB", "POINT": "10", "TOKEN": "x"}
    assert [key for key, value in refused.items() if is_accepted(CHECKS[key], value)] == []


def test_example_that_the_parser_refuses_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(get_command(app), shlex.split("backup main --no-such-option")) is not None


def test_help_prints_each_example_in_a_line() -> None:
    for words in ("backup", "clone create"):
        lines = zsnapdb(*words.split(), "--help").stdout.splitlines()
        shown = [line.strip() for line in lines[lines.index("  Examples:") :]]
        assert shown[1:] == [f"zsnapdb {one}" for one in DECLARED[words].examples]


def test_manual_pages_have_examples_and_the_exit_status() -> None:
    every = pages()
    for text in every.values():
        assert text.count(".SH EXIT STATUS\n") == 1
    for words, command in DECLARED.items():
        page = every[f"zsnapdb-{words.split()[0]}.1"]
        for example in command.examples:
            assert f"\n{escaped(f'zsnapdb {example}')}\n" in page


def parameters() -> Iterator[tuple[str, Any]]:
    root = get_command(app)
    for one in commands():
        if one.is_group or not one.words:
            continue
        command: Any = root
        for word in one.words:
            command = command.commands[word]
        yield from ((one.name, parameter) for parameter in command.params)


def test_names_that_zsnapdb_knows_are_completed() -> None:
    lacking = [
        f"{name} {parameter.name}"
        for name, parameter in parameters()
        if parameter.metavar in COMPLETED and parameter._custom_shell_complete is None
    ]
    assert lacking == []
