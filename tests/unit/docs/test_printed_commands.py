"""Every zsnapdb command in a page is one that the command line accepts, with its arguments and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.references.pages import ROOT
from typer.main import get_command

from zsnapdb.cli.app import app

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "sample-project").glob("*.md")])
BLOCK = re.compile(r"^ *```(sh|console)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(zsnapdb [^`]+)`")
PROMPT = re.compile(r"^ *[#$] ")
ASSIGNMENT = re.compile(r"\w+=")
PLACEHOLDERS = {"COMMAND", "VERB", "*"}
RUN_ID = "20261129T105834Z-e7967e4b"
"""A value for the placeholder RUN, which the command line checks."""


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each zsnapdb command in the blocks of a page."""
    for language, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if language == "sh" or PROMPT.match(line):
                yield from commands_of(PROMPT.sub("", line) if language == "console" else line)


def mentioned_in(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command in a sentence. A command without its arguments is a name."""
    for span in SPAN.findall(re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)):
        yield from (one for one in commands_of(" ".join(span.split())) if not PLACEHOLDERS & set(one))


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each zsnapdb command in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return  # a line of a text in quotes
    segment: list[str] = []
    for word in (*words, ";"):
        if not set(word) <= set("();<>|&"):
            segment.append(word)
            continue
        while segment and (segment[0] in ("sudo", "-n", "if", "do", "!") or ASSIGNMENT.match(segment[0])):
            segment.pop(0)
        if segment and Path(segment[0]).name == "zsnapdb":
            yield [RUN_ID if one in ("RUN", "$RUN") else one for one in segment[1:]]
        segment = []


def refusal(arguments: list[str]) -> tuple[str, str]:
    """Return why the command line refuses the arguments, as the class of the error and its text."""
    command: Any = get_command(app)
    context, rest = None, arguments
    try:
        while hasattr(command, "commands"):
            context = command.make_context(command.name, list(rest), parent=context)
            left = [*context._protected_args, *context.args]
            if not left:
                return "", ""
            _, command, rest = command.resolve_command(context, left)
        command.make_context(command.name, list(rest), parent=context)
    except Exception as error:
        # typer may have a copy of click, so the classes of its errors have no fixed home.
        kind = type(error).__name__
        return ("", "") if kind in ("Exit", "NoArgsIsHelpError") else (kind, str(error))
    return "", ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_line_accepts_printed_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    answers = [(one, refusal(one), {""}) for one in commands_in(text)]
    answers += [(one, refusal(one), {"", "MissingParameter"}) for one in mentioned_in(text)]
    assert [(shlex.join(one), answer[1]) for one, answer, accepted in answers if answer[0] not in accepted] == []


def test_pages_print_many_commands() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(len(list(commands_in(text))) for text in texts) > 200
    assert sum(len(list(mentioned_in(text))) for text in texts) > 200


def test_wrong_command_is_refused() -> None:
    assert refusal(["backup", "main", "--fulll"])[0] == "NoSuchOption"
    assert refusal(["binlog", "find", "main", "--kind", "ddl"]) == ("", "")
    assert list(commands_of("cat x | zsnapdb backup main --plan   # shows")) == [["backup", "main", "--plan"]]
