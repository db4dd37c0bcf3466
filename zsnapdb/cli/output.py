"""What a command prints: results to stdout, as text or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from zsnapdb.errors import ZsnapdbError
    from zsnapdb.report.view import View

Writer = TypeVar("Writer")


def show(view: View, json: bool) -> None:
    """Print a result."""
    print(view.document() if json else view.text())


def writer(json: bool, *, text: Writer, document: Writer) -> Writer:
    """Return the writer for a result that is printed while it arrives."""
    return document if json else text


def show_errors(errors: Iterable[ZsnapdbError]) -> None:
    """Print an error line to stderr for each object that could not be read."""
    for error in errors:
        print(f"zsnapdb: {error}", file=sys.stderr)
