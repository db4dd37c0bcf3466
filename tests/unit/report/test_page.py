"""A page of tables shows text of others as text, and reaches for nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from zsnapdb.report.repository.evidence import Section, page


class Words(HTMLParser):
    """Collects the tags and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


HOSTILE = '<script src="https://example.org/x.js">alert(1)</script>\x1b[31m&"'


def test_text_of_others_is_no_markup_and_no_control() -> None:
    made = page(HOSTILE, (Section(HOSTILE, ("A", HOSTILE), [("1", HOSTILE)]), Section("B", ("C",), [], HOSTILE)))
    read = Words(made)
    assert "script" not in read.tags
    assert read.words.count(HOSTILE.replace("\x1b", r"\x1b")) == 6
    assert "\x1b" not in made


def test_a_page_names_no_other_address() -> None:
    made = page("Evidence", (Section("Runs", ("JOB",), [("backup",)]), Section("Drills", ("X",), [], "none")))
    assert not re.search(r"(src=|href=|url\(|@import)", made)
    assert ("backup" in made, "<p>none</p>" in made) == (True, True)
