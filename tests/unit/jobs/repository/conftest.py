"""Fixtures of the tests of jobs on repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.stored_backups import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    return Site(tmp_path / "store")
