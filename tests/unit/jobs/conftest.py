"""Fixtures of the tests of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.planning_host import PlanningHost, planning_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanningHost:
    """A host with one backup in its repository, whose steps change nothing and are only noted."""
    return planning_host(tmp_path, monkeypatch)
