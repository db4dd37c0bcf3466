"""Errors say whose objects they name, and one place decides who may read them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import zsnapdb
from zsnapdb.base import run_context
from zsnapdb.base.errors import DamagedError, PreflightError, UnknownNameError, UsageError
from zsnapdb.base.run_context import Audience
from zsnapdb.report import view

ANN = Audience("ann")
AUDIENCE = ("current_audience", "AUDIENCE_VARIABLE", "ASK", "describe_exit_code")


def test_error_that_does_not_say_what_it_names_is_told_by_its_class() -> None:
    told = ANN.told(DamagedError("vault/merger of bob is damaged", hint="see vault/merger"))
    assert (told.code, told.exit_code) == ("damaged", 7)
    assert "merger" not in str(told)
    assert str(Audience().told(told)) == str(told)


@pytest.mark.parametrize(
    ("about", "is_told"), [((), True), (("ann",), True), (("bob",), False), (("ann", "bob"), False)]
)
def test_error_is_told_if_all_that_it_names_is_seen(about: tuple[str, ...], is_told: bool) -> None:
    error = PreflightError("clone x waits", about=about)
    assert (ANN.told(error) is error) is is_told
    assert Audience().told(error) is error


def test_document_of_an_error_says_for_whom_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UnknownNameError("clone of bob", hint="bob")
    assert view.error_fields(error) == {"code": "unknown-name", "message": "clone of bob", "hint": "bob"}
    monkeypatch.setenv(run_context.AUDIENCE_VARIABLE, "ann")
    fields = view.error_fields(error)
    assert fields["audience"] == "ann"
    assert "bob" not in str(fields)
    assert view.error_fields(UsageError("'x' is no time"))["message"] == "'x' is no time"


def test_only_the_boundary_asks_who_reads() -> None:
    """A job that changed its texts for a reader would be one more place to forget."""
    users = {
        str(file.relative_to(Path(zsnapdb.__file__).parent))
        for file in sorted(Path(zsnapdb.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.ImportFrom) and any(alias.name == "Audience" for alias in node.names))
        or (isinstance(node, ast.Attribute) and node.attr in AUDIENCE)
    }
    assert users == {
        "cli/clone/lifecycle.py",
        "cli/sudo_cli.py",
        "cli/main_process.py",
        "cli/log_writer.py",
        "jobs/base/events.py",
        "jobs/clone/sources.py",
        "documents/clone.py",
        "documents/base.py",
        "report/clone/change.py",
        "serve/command_processes.py",
        "serve/helper_request_handler.py",
        "serve/operations.py",
    }
