"""What a start makes good of a clone whose reset, detach or switch was killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue, data_replacement, lifecycle
from zsnapdb.mysql.process.server import ServerProcess

BASE = f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.mark.parametrize("runs", [True, False])
def test_a_start_ends_a_change_that_was_killed_before_its_new_data_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, runs: bool
) -> None:
    """Else a commit is refused, and the hint to start the clone helps nobody."""
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    monkeypatch.setattr(ServerProcess, "pid", lambda *_: 7 if runs else None)
    started: list[str] = []
    monkeypatch.setattr(lifecycle, "_start_steps", lambda *_: ())
    monkeypatch.setattr(lifecycle, "start_locked", lambda *words: started.append(words[2].name))
    old = pool.clone("dev", pool.snapshot(BASE), phase="changing")
    new = pool.volume("dev", 2, BASE)
    if runs:
        planned = lifecycle.start(SETTINGS, THIS_HOST, "dev", SILENT).plan()
        assert planned.steps == ("end its interrupted change: it keeps its old data",)
    info = lifecycle.start(SETTINGS, replace(THIS_HOST, run=tmp_path), "dev", SILENT).run()
    assert (info.phase, info.leftovers, started) == ("ready", (), [] if runs else ["dev"])
    assert (old in pool.things, new in pool.things) == (True, False)


@pytest.mark.parametrize("is_committed", [True, False])
def test_data_that_an_interrupted_reset_left_goes_before_new_data_is_made(
    monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """Each revision has the quota of the clone, so leftovers of interrupted resets would multiply the quota."""
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr(ServerProcess, "pid", lambda *_: None)
    pool.clone("dev", pool.snapshot(BASE), revision=2)
    old = pool.volume("dev", 1, BASE)
    if is_committed:
        pool.commit(old, "20260101T000000Z-beef")
    there: list[bool] = []
    monkeypatch.setattr("zsnapdb.jobs.clone.volumes.layout_of", lambda *_: None)
    monkeypatch.setattr("zsnapdb.jobs.clone.volumes.clone_volumes", lambda *_: there.append(old in pool.things))
    info, source = catalogue.find(SETTINGS, THIS_HOST, "dev"), SimpleNamespace(origin=None)
    assert data_replacement._clone_beside(SETTINGS, info, source, []) == 3  # type: ignore[arg-type]
    assert there == [is_committed]
