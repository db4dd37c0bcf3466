"""A run has one id, which is in its snapshots and in its manifest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.command_line import ENVIRONMENT
from tests.unit.support.world import made
from zsnapdb.base import run_context
from zsnapdb.jobs.backup.source_interface import SnapshotRequest
from zsnapdb.zfs import snapshots

ID = "20261122T120000Z-0123abcd"
PRINT = (
    "from zsnapdb.base import run_context; print(run_context.run_id() == run_context.run_id(), run_context.run_id())"
)


def printed(given: str | None) -> str:
    variables = {run_context.VARIABLE: given} if given is not None else {}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], env={**ENVIRONMENT, **variables}, capture_output=True, text=True, check=True
    )
    same, found = done.stdout.split()
    assert same == "True"
    return found


def test_snapshots_carry_the_run_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots.PendingSnapshots, "of", lambda names, properties: dict(properties))
    request = SnapshotRequest("main", "20261122T120000Z-0123", {"data": "tank/data"}, "taken", ID)
    properties: Any = request.prepare({})
    assert properties["zsnapdb:run"] == ID


def test_a_manifest_names_the_run_that_wrote_it(tmp_path: Path) -> None:
    with made(tmp_path) as world:
        stored = world.backup()
        manifest = world.repository.manifest("main", stored.manifest.backup_id)
        assert manifest.run_id == run_context.run_id()


@pytest.mark.parametrize("given", [None, "", "x", f"{ID}0", f"{ID}\n", "$(reboot)"])
def test_a_run_without_a_good_id_in_its_environment_makes_one(given: str | None) -> None:
    found = printed(given)
    assert re.fullmatch(run_context.PATTERN, found)
    assert found != ID


def test_a_run_takes_the_id_that_it_was_given() -> None:
    assert printed(ID) == ID
