"""No text of a result has the word None, whichever of its optional parts are missing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tests.unit.report.test_views import views
from tests.unit.support.built import GIVEN, Builder
from tests.unit.support.manifests import manifest
from zsnapdb.documents.base import Document
from zsnapdb.jobs.setup.examples import examples
from zsnapdb.report.view import View

PICKS, LENGTHS = range(4), (1, 0, 2)
VALUES: dict[str, Any] = {
    "ResetIntention.replaces": GIVEN,
    "Summary.described": f'{{"source": {manifest().source.model_dump_json()}, "objectives": null}}',
    "Example.file": examples()[0].file,
    "ArchivedFile.name": "binlog.000001",
    "Chunk.plain_hash": "0" * 64,
    "Chunk.stored_sha256": "0" * 64,
}


def texts(view: type[View]) -> list[str]:
    """Return the text of the view with missing parts, for each choice among its other alternatives."""
    shown = []
    for pick in PICKS:
        for length in LENGTHS:
            made = Builder(pick, length, VALUES).build(view, view.__module__)
            try:
                shown.append(made.text())
            except (LookupError, ValueError):
                # The parts do not fit together: one names another that is not there.
                continue
    return shown


def lines_with_none(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(r"\bNone\b", line)]


@pytest.mark.parametrize("view", list(views()), ids=lambda view: view.__name__)
def test_no_text_of_a_view_says_none(view: type[View]) -> None:
    shown = texts(view)
    assert shown
    assert [line for text in shown for line in lines_with_none(text)] == []


def test_text_that_says_none_is_seen() -> None:
    @dataclass(frozen=True)
    class Wrong(View):
        kind: ClassVar[str] = "wrong"
        document_class: ClassVar[type[Document]] = Document
        name: str | None

        def text(self) -> str:
            return f"the clone {self.name}"

    assert lines_with_none(Builder().build(Wrong).text()) == ["the clone None"]
