"""What a command prints: results to stdout, as text or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from zsnapdb.base.foreign_text import printed
from zsnapdb.cli.progress_bars import SCREEN

if TYPE_CHECKING:
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.jobs.record.host_record import StoredFinding
    from zsnapdb.report.view import View

Writer = TypeVar("Writer")


class Shown(Protocol):
    """What can be printed: a view, or the answer of an earlier run."""

    def text(self) -> str:
        """Return the text for people."""

    def document(self) -> str:
        """Return the document for programs."""


def show(view: Shown, json: bool) -> None:
    """Print a result. Tables are fitted to a terminal, on which no bars stand any more.

    A pipe gets nothing of an empty list: that the list is empty is said on stderr.
    """
    from zsnapdb.cli import log, tables
    from zsnapdb.report.view import TabularView, empty_note

    with SCREEN.cleared():
        if json or not isinstance(view, TabularView):
            print(view.document() if json else printed(view.text()))
        elif tables.are_wanted():
            tables.show_parts(view.parts(), sys.stdout)
        elif note := empty_note(view.parts()):
            log.info(printed(note))
        else:
            print(printed(view.text()))


def show_at_once(view: View, json: bool) -> None:
    """Print one of many results. Who reads them has it at once."""
    with SCREEN.cleared():
        print(view.document() if json else printed(view.text()), flush=True)


def writer(json: bool, *, text: Writer, document: Writer) -> Writer:
    """Return the writer for a result that is printed while it arrives."""
    return document if json else text


def renamed(old: str, new: str) -> None:
    """Say on stderr that a command has a new name. The old one works."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    log.write(LogLevel.WARNING, f"`zsnapdb {old}` is now `zsnapdb {new}`")


def show_missing(findings: Iterable[StoredFinding]) -> bool:
    """Print to stderr what a repository lacks of what this host stored. Return whether something may be lost."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    is_alarming = False
    for finding in findings:
        log.write(LogLevel.ERROR, f"{finding.text}\nhint: {finding.hint}")
        is_alarming = is_alarming or finding.is_alarming
    return is_alarming


def show_errors(errors: Iterable[ZsnapdbError]) -> None:
    """Print an error line to stderr for each object that could not be read."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    for error in errors:
        log.write(LogLevel.ERROR, str(error))
