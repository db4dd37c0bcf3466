"""Settings of all unit tests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import settings

from zsnapdb.report.view import View

# How long an example takes depends on the machine and its load, and no law is about that.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(scope="session", autouse=True)
def every_document_is_as_its_schema_says() -> Iterator[None]:
    """Check each document that a view of zsnapdb makes in any unit test."""
    make = View.document

    def checked(view: View) -> str:
        text = make(view)
        if type(view).__module__.startswith("zsnapdb."):
            from tests.documents import check
            from zsnapdb.report.schemas import DOCUMENTS

            check(json.loads(text), {one.kind for types in DOCUMENTS.values() for one in types})
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(View, "document", checked)
        yield
