"""A command that zsnapdb prints can be pasted: its words are those of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import zsnapdb
from zsnapdb.cli.app import app

SOURCE = Path(zsnapdb.__file__).parent
PRINTED = re.compile(r"`(zsnapdb(?: [^`]+)?)`")
VALUE = "7"
"""Stands for each value that is filled in."""
NAMED_LATER = {"zsnapdb 7", "zsnapdb 7 7", "zsnapdb COMMAND --help"}
"""The command itself is filled in."""


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, but for its docstrings, with a value in each place of a format string."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts | described:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else VALUE for p in node.values)


def printed() -> Iterator[tuple[str, str]]:
    """Yield each command in the strings of the program, and where it is."""
    for file in sorted(SOURCE.rglob("*.py")):
        for line, text in texts(ast.parse(file.read_text())):
            for command in PRINTED.findall(text):
                yield f"{file.relative_to(SOURCE)}:{line}", command


def complaint(root: Any, words: Sequence[str]) -> str | None:
    """Return what is wrong with a command line, None if it can be parsed. Nothing is run.

    Words that only name a command, as a sentence about it does, may lack its arguments.
    """
    is_name = VALUE not in words and not any(word.startswith("-") for word in words)
    try:
        context = root.make_context("zsnapdb", list(words))
        while hasattr(context.command, "commands") and (rest := [*context._protected_args, *context.args]):
            name, command, rest = context.command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except Exception as error:
        kind = type(error).__name__
        is_known = kind == "Exit" or (is_name and kind in ("MissingParameter", "NoArgsIsHelpError"))
        return None if is_known else f"{kind}: {error}"
    return None


def test_a_command_is_accepted_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    commands = dict(sorted({command: where for where, command in printed()}.items()))
    root = get_command(app)
    wrong = {
        f"{where}: {command}": why
        for command, where in commands.items()
        if command not in NAMED_LATER and (why := complaint(root, shlex.split(command)[1:])) is not None
    }
    assert wrong == {}
    assert len(commands) > 80
    assert complaint(root, ["rewind", "--no-such-option"]) is not None
    assert complaint(root, ["vm", "clone", VALUE]) is not None
    assert complaint(root, ["no-such-command"]) is not None
