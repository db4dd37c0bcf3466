"""Fixtures of the tests of binlog jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)
