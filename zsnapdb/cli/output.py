"""Output of a command: results on stdout, as text or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.progress_bars import SCREEN

if TYPE_CHECKING:
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.jobs.record.host_record import StoredFinding
    from zsnapdb.report.view import View

Writer = TypeVar("Writer")


class Printable(Protocol):
    """A printable result: a view, or the answer of an earlier run."""

    def text(self) -> str:
        """Return the text for people."""

    def document(self) -> str:
        """Return the document for programs."""


def show(view: Printable, json: bool) -> None:
    """Print a result. Progress bars are removed first, and tables fit the terminal.

    If stdout is a pipe, an empty list prints nothing on stdout and a note on stderr.
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
    """Print one of many results without buffering."""
    with SCREEN.cleared():
        print(view.document() if json else printed(view.text()), flush=True)


def writer(json: bool, *, text: Writer, document: Writer) -> Writer:
    """Return the function that prints each part of a result as soon as the part arrives."""
    return document if json else text


def renamed(old: str, new: str) -> None:
    """Warn on stderr that a command has a new name. The old name still works."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    log.write(LogLevel.WARNING, f"`zsnapdb {old}` is now `zsnapdb {new}`")


def show_missing(findings: Iterable[StoredFinding]) -> bool:
    """Print to stderr the missing backups, which this host stored. Return whether data may be lost."""
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
