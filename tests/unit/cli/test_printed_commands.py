"""A command that zsnapdb prints can be pasted: its words are those of the command line."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import zsnapdb
from zsnapdb.base import run_context
from zsnapdb.cli.app import app

SOURCE = Path(zsnapdb.__file__).parent
PRINTED = re.compile(r"`(zsnapdb(?: [^`]+)?)`")
VALUE = "7"
"""Stands for each value that is filled in."""
RUN = "20261127T080000Z-0123abcd"
NAMED_LATER = {
    "zsnapdb 7",
    "zsnapdb 7 7",
    "zsnapdb COMMAND --help",
    f"zsnapdb VERB INSTANCE --json --once {RUN}",
    "zsnapdb clone *",
}
"""The command itself is filled in."""


@pytest.fixture(autouse=True)
def own_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A parsed `--once` sets the run id of this process: give it back."""
    with monkeypatch.context() as patch:
        patch.setenv(run_context.VARIABLE, RUN)
        yield
    run_context.run_id.cache_clear()


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


ROOT = SOURCE.parent
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in page.parts)]
LINE = re.compile(r"^(?:[#$] )?(?:sudo )?(zsnapdb [a-z][^\n]*)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```(?:sh|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def in_pages() -> Iterator[tuple[str, str]]:
    """Yield each command in the pages, and where it is, with the id of a run where it is filled in."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [textwrap.dedent(block) for block in BLOCK.findall(text)]
        lines = [line for block in blocks for line in LINE.findall(block.replace("\\\n", " "))]
        for command in (*lines, *PRINTED.findall(BLOCK.sub("", text))):
            bare = re.split(r"\s+(?:[|;>]|#\s|&&)", command)[0].strip()
            yield page.relative_to(ROOT).as_posix(), re.sub(r"--once \"?\$?RUN\b\"?", f"--once {RUN}", bare)


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


def test_a_command_is_accepted_as_a_page_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    root, found = get_command(app), set(in_pages())
    wrong = {
        f"{where}: {command}": why
        for where, command in sorted(found)
        if command not in NAMED_LATER and (why := complaint(root, shlex.split(command)[1:])) is not None
    }
    assert wrong == {}
    assert len(found) > 400
