"""Tables on a terminal, by rich. A pipe or a file gets plain text instead, for programs that parse it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from zsnapdb.base.untrusted_text import printed

if TYPE_CHECKING:
    from zsnapdb.report.view import Part
    from zsnapdb.report.view import Table as PlainTable

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
    """Whether stdout is a terminal that can show tables."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def show_parts(parts: Sequence[Part], file: TextIO, width: int | None = None) -> None:
    """Print lines unchanged, and tables fitted to the terminal.

    `width`: number of columns, if the terminal does not report it.
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
