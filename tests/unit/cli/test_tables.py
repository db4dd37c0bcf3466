"""A terminal gets tables that fit it and a sentence where there is nothing; a pipe gets the plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.command_line import zsnapdb_from_nothing
from zsnapdb.cli import output
from zsnapdb.cli.output import show
from zsnapdb.report.clone.list import ClonesView
from zsnapdb.report.view import Fields, Labelled, Part, Table, TabularView, spaced, table

STYLE = re.compile(r"\x1b\[([0-9;]*)m")
HEADINGS = ("NAME", "STATE")


@dataclass(frozen=True)
class Shelf(TabularView):
    rows: Sequence[tuple[str, ...]]
    kind: ClassVar[str] = "shelf"

    def parts(self) -> Sequence[Part]:
        return ["the shelf", Table(HEADINGS, self.rows, "nothing is on it"), Labelled.at(["met       all"], 10)]

    def fields(self) -> Fields:
        return {"rows": list(self.rows)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(parts: Sequence[Part], width: int = 80) -> str:
    out = io.StringIO()
    output.show_parts(parts, out, width)
    return out.getvalue()


def plain(text: str) -> str:
    return STYLE.sub("", text)


def test_a_terminal_gets_headings_in_bold_and_states_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown([Table(HEADINGS, [("a", "running"), ("b", "BROKEN")], "")])
    assert "\x1b[1mNAME" in text
    assert "\x1b[32mrunning" in text
    assert "\x1b[1;31mBROKEN" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown([Table(HEADINGS, [("a", "running"), ("b", "BROKEN")], "")])
    assert not [codes for codes in STYLE.findall(text) if set(codes.split(";")) & {"31", "32", "33"}]


def test_a_wide_table_is_folded_and_loses_nothing() -> None:
    name = "x" * 70
    text = plain(shown([Table(("NAME", "WHY"), [(name, "y" * 40)], "")], width=60))
    assert max(map(len, text.split("\n"))) <= 60
    assert text.count("x") == 70
    assert text.count("y") == 40


def test_an_empty_list_says_so_on_a_terminal() -> None:
    assert plain(shown(Shelf(()).parts())) == "the shelf\nnothing is on it\nmet  all\n"


def test_text_of_others_is_no_markup_and_steers_no_terminal() -> None:
    text = plain(shown([Table(HEADINGS, [("[red]x[/red]", "a\x1b[2Jb"), (":smile:", "")], ""), "[bold]y\x07"]))
    for part in ("[red]x[/red]", "a\\x1b[2Jb", ":smile:", "[bold]y\\x07"):
        assert part in text


@pytest.mark.parametrize("rows", [(), (("a", "running"),)])
def test_a_pipe_gets_the_plain_text(rows: Sequence[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    show(Shelf(rows), json=False)
    assert capsys.readouterr().out == f"the shelf\n{table(HEADINGS, rows)}\nmet       all\n"


@pytest.mark.parametrize(("term", "is_fitted"), [("xterm", True), ("dumb", False)])
def test_only_a_terminal_that_can_do_it_gets_more(term: str, is_fitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", term)
    show(Shelf(()), json=False)
    assert ("nothing is on it" in out.getvalue()) is is_fitted


def test_a_terminal_gets_the_document_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    show(Shelf(()), json=True)
    assert out.getvalue() == Shelf(()).document() + "\n"


def test_there_are_no_clones_is_said() -> None:
    from datetime import UTC, datetime

    view = ClonesView((), datetime(2026, 1, 1, tzinfo=UTC))
    assert plain(shown(view.parts())).startswith("no clones:")
    assert view.text().startswith("CLONE  INSTANCE")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


@given(st.lists(TEXTS), st.integers(min_value=1, max_value=20))
def test_the_plain_text_of_labelled_lines_is_the_lines(lines: list[str], width: int) -> None:
    labelled = Labelled.at(lines, width)
    assert labelled.text == "\n".join(lines)
    assert [label + " " * (width - len(label)) + text for label, text in labelled.rows if text] == [
        line[:width].rstrip() + " " * (width - len(line[:width].rstrip())) + line[width:]
        for line in lines
        if line[width:]
    ]


@given(st.lists(st.lists(TEXTS, min_size=1), max_size=4))
def test_blocks_are_divided_by_an_empty_line(blocks: list[list[str]]) -> None:
    assert "\n".join(map(str, spaced(blocks))) == "\n\n".join("\n".join(block) for block in blocks)


def test_rich_is_not_loaded_for_a_pipe() -> None:
    done = zsnapdb_from_nothing("example")
    assert done.returncode == 0
    import subprocess
    import sys

    code = "import sys; from zsnapdb.cli.app import app; from zsnapdb.cli import output; print('rich' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert asked.stdout.strip() == "False"


@dataclass(frozen=True)
class Row(Shelf):
    kind: ClassVar[str] = "row"

    def parts(self) -> Sequence[Part]:
        return [Table(HEADINGS, self.rows, "nothing is on it")]


def test_empty_list_in_a_pipe_is_a_note_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show(Row(()), json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip().endswith("nothing is on it")
    show(Row((("a", "running"),)), json=False)
    assert capsys.readouterr().out.startswith("NAME")
