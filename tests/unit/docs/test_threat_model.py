"""The threat model names code and tests that exist, and every attack of the tests."""

from __future__ import annotations

import re

from tools.references.pages import ROOT

PAGE = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
PATH = re.compile(r"`(\w[\w.*-]*(?:/[\w.*-]+)*/[\w.*-]*)`")
"""A relative path in code font. Host paths begin with a slash."""


def missing(page: str) -> list[str]:
    """Return the paths of a page that are no file or folder of the checkout or of the package."""
    return [path for path in PATH.findall(page) if not any([*ROOT.glob(path), *(ROOT / "zsnapdb").glob(path)])]


def test_every_path_of_the_threat_model_exists() -> None:
    assert missing(PAGE) == []
    assert len(set(PATH.findall(PAGE))) > 80


def test_missing_path_is_found() -> None:
    page = "`serve/helper.py` `tests/attacks/test_no_such.py` `serve/no_such.py` `zsnapdb/mysql/` `/run/zsnapdb` `a.b`"
    assert missing(page) == ["tests/attacks/test_no_such.py", "serve/no_such.py"]


def test_threat_model_names_every_module_of_attacks() -> None:
    for module in (ROOT / "tests/attacks").glob("test_*.py"):
        assert f"`tests/attacks/{module.name}`" in PAGE
