"""A page of HTML made of titled tables. It names no other address, so it shows the same wherever it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from zsnapdb.base.foreign_text import printed

_STYLE = """
body { font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25em .75em .25em 0; border-bottom: 1px solid #ddd; }
td { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10px; } tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Section:
    """A titled table. Each row has as many cells as there are headings. `empty` stands for a table without rows."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    empty: str = ""


def page(title: str, sections: Sequence[Section]) -> str:
    """Return the whole page. Every text is escaped: names and messages may come from others."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_escaped(title)}</h1>",
            *(line for section in sections for line in _section(section)),
            "</body></html>",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{_escaped(section.title)}</h2>"
    if not section.rows:
        yield f"<p>{_escaped(section.empty)}</p>"
        return
    yield "<table>"
    if any(section.headings):
        yield f"<thead><tr>{''.join(f'<th>{_escaped(one)}</th>' for one in section.headings)}</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        yield f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"


def _escaped(text: str) -> str:
    return escape(printed(text), quote=True)
