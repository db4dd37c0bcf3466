"""Each command has examples that its parser accepts, in its help and in its manual page; values are completed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tools.references.commands import commands
from tools.references.man_pages import escaped, pages
from typer.main import get_command

from tests.unit.cli.test_printed_commands import complaint
from tests.unit.support.command_line import zsnapdb
from zsnapdb.cli.app import app
from zsnapdb.cli.commands import COMMANDS, Command

DECLARED = {words: one for words, one in COMMANDS.items() if isinstance(one, Command) and not one.hidden}
COMPLETED = {"INSTANCE", "REPOSITORY", "BACKUP", "BACKUP...", "TARGET"}
"""The metavars of values that a shell can complete."""


@pytest.mark.parametrize("words", DECLARED)
def test_examples_of_a_command_are_parsed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = DECLARED[words].examples
    assert 1 <= len(examples) <= 3
    root = get_command(app)
    for example in examples:
        given = shlex.split(example)
        assert given[: len(words.split())] == words.split()
        assert len(example) <= 90
        assert complaint(root, given) is None, example


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
