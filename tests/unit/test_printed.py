"""Text of others steers no terminal and forges no line of a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ServerError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.progress import Terminal
from zsnapdb.report.clone.query import text

EVIL = "table `\x1b[2J\x1b]0;owned\x07` \r\x9b31m\u2028\u202e\udcff does not exist"


def test_control_characters_of_a_server_in_an_error_are_escaped() -> None:
    error = ServerError(EVIL, hint="run \x1b[1m")
    assert str(error).replace("\n", "").isprintable()
    assert r"\x1b[2J" in error.message
    assert error.hint == r"run \x1b[1m"


def test_control_characters_in_an_event_of_a_job_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().warn(EVIL)
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_a_cell_of_a_table_is_one_printable_line() -> None:
    assert text("a\x1b[2Jb\r\nc\td").isprintable()


@given(st.text())
def test_printed_text_is_printable_and_stays_as_it_is(raw: str) -> None:
    once = printed(raw)
    assert printed(once) == once
    once.encode()
    assert not set(once) & {"\x1b", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u202e"}
