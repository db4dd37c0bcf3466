"""Output of a command: results on stdout, as text, as a table by rich, or as one JSON document.

A pipe or a file gets plain text instead of a table, for programs that parse it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli.printed_commands import complete
from zsnapdb.cli.progress_bars import SCREEN

if TYPE_CHECKING:
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.jobs.record.host_backup_record import StoredFinding
    from zsnapdb.report.view import Part, View
    from zsnapdb.report.view import Table as PlainTable

Writer = TypeVar("Writer")
_HINT = re.compile(r'"hint": "(?:[^"\\]|\\.)*"')


class Printable(Protocol):
    """A printable result, which is a view or the answer of an earlier run."""

    def text(self) -> str:
        """Return the result as text, the output without `--json`."""

    def document(self) -> str:
        """Return the result as a JSON document, the output with `--json`."""


def show(view: Printable, json: bool) -> None:
    """Print a result. Progress bars are removed first, and tables fit the terminal.

    If stdout is a pipe, an empty list prints nothing on stdout and a note on stderr.
    """
    from zsnapdb.cli import log_writer
    from zsnapdb.report.view import TabularView, empty_note

    with SCREEN.cleared():
        if json or not isinstance(view, TabularView):
            print(_with_hints(view.document()) if json else complete(printed(view.text())))
        elif are_wanted():
            show_parts(view.parts(), sys.stdout)
        elif note := empty_note(view.parts()):
            log_writer.info(printed(note))
        else:
            print(printed(view.text()))


def _with_hints(document: str) -> str:
    """Return a document whose hints name the instance of the command. Data stays unchanged."""
    return _HINT.sub(lambda found: complete(found[0]), document)


def show_at_once(view: View, json: bool) -> None:
    """Print one of many results without buffering."""
    with SCREEN.cleared():
        print(view.document() if json else printed(view.text()), flush=True)


def writer(json: bool, *, text: Writer, document: Writer) -> Writer:
    """Return the function that prints each part of a result as soon as the part arrives."""
    return document if json else text


def renamed(old: str, new: str) -> None:
    """Warn on stderr that a command has a new name. The old name still works."""
    from zsnapdb.cli import log_writer

    log_writer.warn(f"`zsnapdb {old}` is now `zsnapdb {new}`")


def require_yes(command: str, shown: str, question: str, *, json: bool = False) -> None:
    """Print `shown`, and ask the user for a confirmation before any change.

    Raises UsageError if the answer is no, or if the command cannot ask, because of --json or a missing terminal.
    """
    import typer

    from zsnapdb.base.errors import UsageError

    if json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{command} asks for a confirmation, which needs a terminal", hint="add --yes")
    print(printed(shown), file=sys.stderr)
    if not typer.confirm(question, err=True):
        raise UsageError("nothing was changed", hint="run the same command to be asked again")


def show_missing(findings: Iterable[StoredFinding]) -> bool:
    """Print to stderr which backups of this host the repository lacks. Return whether data may be lost."""
    from zsnapdb.cli import log_writer

    is_alarming = False
    for finding in findings:
        log_writer.error(f"{finding.text}\nhint: {finding.hint}")
        is_alarming = is_alarming or finding.is_alarming
    return is_alarming


def show_errors(errors: Iterable[ZsnapdbError]) -> None:
    """Print an error line to stderr for each object that could not be read."""
    from zsnapdb.cli import log_writer

    for error in errors:
        log_writer.error(str(error))


_STYLES = {
    **dict.fromkeys(("ok", "met", "good", "passed", "running"), "green"),
    **dict.fromkeys(("warning", "ENDS", "expired", "skipped"), "yellow"),
    **dict.fromkeys(
        ("unfit", "BROKEN", "GAP", "UNPROTECTED", "MISSING", "FUTURE", "UNKNOWN", "NOT NOTIFIED", "damaged", "failed"),
        "bold red",
    ),
}
"""Styles of cells with exactly these texts. rich omits colours if NO_COLOR is set (no-color.org)."""


def are_wanted() -> bool:
    """Return whether stdout is a terminal that can show tables."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def show_parts(parts: Sequence[Part], file: TextIO, width: int | None = None) -> None:
    """Print lines unchanged, and tables fitted to the terminal.

    `width`: number of columns, used if the terminal does not report its width.
    """
    from rich.console import Console

    console = Console(file=file, force_terminal=True, markup=False, highlight=False, emoji=False, width=width)
    for part in parts:
        if isinstance(part, str):
            console.print(printed(part), soft_wrap=True)
        elif not part.rows:
            console.print(printed(part.empty or part.text), soft_wrap=True)
        else:
            _show_table(console, part)


def _show_table(console: object, part: PlainTable) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    assert isinstance(console, Console)
    shown = Table(box=None, show_header=bool(part.headings), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in part.headings or ("",) * len(part.rows[0]):
        shown.add_column(Text(heading), overflow="fold")
    for row in part.rows:
        # Cells contain untrusted text. A Text is never parsed as markup.
        shown.add_row(*(Text(printed(cell), style=_STYLES.get(cell, "")) for cell in row))
    console.print(shown)
