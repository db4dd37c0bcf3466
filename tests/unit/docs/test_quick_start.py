"""The quick start begins with the commands of Install that a test tries on a bare host."""

from __future__ import annotations

import re

from tools.references.pages import ROOT

from tests.lab import guides

SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_quick_start_begins_with_the_tried_installation() -> None:
    install = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    first, second, *_ = SHELL.findall((ROOT / "docs/quick-start.md").read_text(encoding="utf-8"))
    (tried,) = guides.blocks(install, "bare host, package")
    assert first == tried.body
    assert second.startswith("zsnapdb setup ")
