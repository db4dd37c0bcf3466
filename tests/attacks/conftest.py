"""Attacks run inside a guest of the lab, as system tests do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.conftest import first, lab

__all__ = ["first", "lab"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "LAB_FLAVOUR" not in os.environ:
        for item in items:
            if Path(item.fspath).is_relative_to(Path(__file__).parent):
                item.add_marker(
                    pytest.mark.skip(reason="runs in a guest of the lab: python3 tests/lab test tests/attacks")
                )
