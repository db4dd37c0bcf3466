"""The pages of `docs` that are made from the code are those that the code makes now."""

from __future__ import annotations

import pytest

from tools.references.pages import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(name: str) -> None:
    file = ROOT / name
    assert file.exists(), "run `make references`"
    assert file.read_text(encoding="utf-8") == PAGES[name](), "run `make references`"
