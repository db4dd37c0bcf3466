"""Fixtures of the tests of backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.support.barn import Barn, make_barn
from tests.unit.support.world import World, made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A host with one good backup."""
    with made(tmp_path) as world:
        world.backup()
        world.check_settled()
        world.steps.clear()
        yield world


@pytest.fixture
def barn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Barn:
    """A host with a running virtual machine on two zvols."""
    return make_barn(monkeypatch, tmp_path)
