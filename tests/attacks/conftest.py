"""Attacks run inside a guest of the lab, as system tests do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.conftest import first, lab, leave_to_guests

__all__ = ["first", "lab"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_guests(items, Path(__file__).parent)
