"""Times in words, paragraphs and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

from zsnapdb.documents.base import moment as moment


def truncate_to_second(microseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, without its fraction, for tables."""
    return f"{datetime.fromtimestamp(microseconds // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def paragraph(head: str, text: str) -> list[str]:
    """Return the text after its head, in lines of at most 80 columns unless a word is longer."""
    return textwrap.wrap(
        text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return columns aligned to their widest cell, headings first."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
