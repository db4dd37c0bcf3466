"""All generated pages and their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.references import (
    command_line,
    command_table,
    configuration,
    copies,
    doctor_rules,
    documents,
    exit_codes,
    http_api,
    man_pages,
    sizing_table,
)

ROOT = Path(__file__).parents[3]

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/copies.md": copies.page,
    "docs/doctor.md": doctor_rules.page,
    "docs/reference/command-line.md": command_line.page,
    "docs/reference/configuration.md": configuration.page,
    "docs/reference/exit-codes.md": exit_codes.page,
    "docs/reference/json.md": documents.page,
    "docs/reference/openapi.json": http_api.schema,
    "docs/reference/schema.json": documents.schema,
}
"""The function for each page, by path in the checkout."""
MAN = "docs/man"


def made() -> dict[str, str]:
    """Return the text of every generated page, by path in the checkout."""
    manuals = {f"{MAN}/{name}": text for name, text in man_pages.pages().items()}
    written = {name: command_table.page(ROOT / name) for name in ("README.md", "docs/quick-start.md")}
    written["docs/sizing.md"] = sizing_table.page(ROOT / "docs/sizing.md")
    return {**{name: make() for name, make in PAGES.items()}, **written, **manuals}
