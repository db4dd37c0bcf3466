"""A command that zsnapdb prints can be pasted: its words are those of the command line."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import zsnapdb
from zsnapdb.base import patterns, run_context
from zsnapdb.base.errors import NotFound
from zsnapdb.cli import main_process, printed_commands
from zsnapdb.cli.app import app
from zsnapdb.cli.printed_commands import NEED_INSTANCE, naming_instance, with_instance

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


OWN_INSTANCE = {"doctor", "grants", "advise", "agent run", "agent pause", "unpin", "forget"}
"""They act on all instances, print text for any server, are hidden, or are only printed with all of their arguments."""


def leaf(root: Any, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the words of the command of a command line, and its parsed parameters."""
    context = root.make_context("zsnapdb", list(words), resilient_parsing=True)
    name: list[str] = []
    while hasattr(context.command, "commands") and (rest := [*context._protected_args, *context.args]):
        found, command, rest = context.command.resolve_command(context, rest)
        if command is None:
            break
        name.append(found)
        context = command.make_context(found, rest, parent=context, resilient_parsing=True)
    return " ".join(name), context.params


def test_a_printed_command_has_the_instance_of_the_command_that_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an instance, it would fail as soon as several instances are configured."""
    root, found = get_command(app), 0
    for where, command in printed():
        line = with_instance(f"`{command}`", "main").strip("`")
        name, params = leaf(root, shlex.split(line)[1:])
        if name not in NEED_INSTANCE or command in NAMED_LATER or command.endswith("--help"):
            assert line == command, where
            continue
        is_of_all = params.get("instances") or params.get("every")
        assert is_of_all or params["instance"] in ("main", VALUE, "INSTANCE"), (where, line)
        found += 1
    assert found > 100


def test_each_command_that_acts_on_one_instance_is_completed() -> None:
    def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, (*words, name))
            elif any(one.name == "instance" and one.param_type_name == "argument" for one in command.params):
                yield " ".join((*words, name))

    assert set(commands(get_command(app))) - OWN_INSTANCE == NEED_INSTANCE
    assert printed_commands.INSTANCE == patterns.INSTANCE


def test_an_error_and_a_document_name_the_instance_that_the_user_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise NotFound("no backup", hint="see `zsnapdb list`, `zsnapdb status --all` and `zsnapdb verify --deep`")

    monkeypatch.setattr(sys, "argv", ["zsnapdb", "show", "main", "--json"])
    for named in ("main", "x`y", None):
        with contextlib.suppress(NotFound):
            naming_instance(fail)(instance=named)
        main_process._failed(NotFound("no backup", hint="see `zsnapdb list`"))
        out, err = capsys.readouterr()
        expected = "see `zsnapdb list main`" if named == "main" else "see `zsnapdb list`"
        assert (json.loads(out)["error"]["hint"], expected in err) == (expected, True)
    text = "`zsnapdb status --all` `zsnapdb verify --deep` `zsnapdb list other` `zsnapdb clone list`"
    assert with_instance(text, "main") == text.replace("verify --", "verify main --")


def test_a_command_is_accepted_as_a_page_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    root, found = get_command(app), set(in_pages())
    wrong = {
        f"{where}: {command}": why
        for where, command in sorted(found)
        if command not in NAMED_LATER and (why := complaint(root, shlex.split(command)[1:])) is not None
    }
    assert wrong == {}
    assert len(found) > 400
