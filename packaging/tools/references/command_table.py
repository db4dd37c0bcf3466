"""The table of all commands in pages that people write: it stands between two marks, and the rest is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zsnapdb.cli.commands import COMMANDS, Heading

_BEGIN, _END = "<!-- commands: `make references` writes this table -->\n", "<!-- end of commands -->\n"


def page(file: Path) -> str:
    """Return the text of the page with the table of today. ValueError if the page has no place for it."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{file} has no place for the table of commands")
    return "".join((before, begin, "\n", *_lines(), "\n", end, after))


def _lines() -> Iterator[str]:
    """Yield a row for each heading of the help, with its commands."""
    yield "| subject | commands |\n|---|---|\n"
    for heading in Heading:
        names = [name for name, one in COMMANDS.items() if one.heading is heading and not one.hidden]
        yield f"| {heading} | {', '.join(f'`{name}`' for name in names)} |\n"
