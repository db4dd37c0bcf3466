"""A backup that prune removes between the plan and its execution is no damaged backup."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import DamagedError, NotFound, RepositoryError, ZsnapdbError
from zsnapdb.jobs.trial import drill, scratch_datasets
from zsnapdb.repository import drills
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.repository import Repository
from zsnapdb.store.local import LocalStore

BACKUP = "20261120T101112Z-7f3a"
PLAN: Any = SimpleNamespace(
    drill_id="20261121T101112Z-7f3a",
    requested="latest",
    restore=SimpleNamespace(backup_id=BACKUP, server_version="8.4.0", clones=()),
    place=None,
    seed=1,
)
INSTANCE: Any = SimpleNamespace(
    name="main",
    is_own_repository=False,
    host=SimpleNamespace(
        now=lambda: datetime(2026, 11, 21, 10, 11, 12, tzinfo=UTC), run_id=lambda: "20261121T101112Z-0123abcd"
    ),
)
SETTINGS: Any = SimpleNamespace(restore=SimpleNamespace(mount_root=Path("/restored")))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(scratch_datasets, "ephemeral", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("zsnapdb.zfs.version.userland", lambda: "zfs-2.3")
    return Repository.open_or_create(LocalStore(tmp_path), "", "id-1")


def restore_raises(monkeypatch: pytest.MonkeyPatch, error: ZsnapdbError) -> None:
    def execute(*_: object) -> None:
        raise error

    monkeypatch.setattr("zsnapdb.jobs.restore.server_restore.execute_without_journal", execute)


@pytest.mark.parametrize("error", [DamagedError("chunk 1 is missing"), NotFound("no manifest")])
def test_a_drill_of_a_backup_that_was_removed_meanwhile_says_so_and_leaves_no_evidence(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, error: ZsnapdbError
) -> None:
    restore_raises(monkeypatch, error)
    with pytest.raises(NotFound, match=f"backup {BACKUP} was removed from the repository meanwhile"):
        drill.execute(SETTINGS, INSTANCE, repository, PLAN)
    assert drills.ids(repository, "main") == []


def test_a_drill_of_a_damaged_backup_that_is_still_listed_leaves_its_evidence(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_raises(monkeypatch, DamagedError("chunk 1 is missing"))
    monkeypatch.setattr(Repository, "backup_ids", lambda *_: [BACKUP])
    result = drill.execute(SETTINGS, INSTANCE, repository, PLAN)
    assert result.evidence.outcome is Outcome.DAMAGED
    assert drills.ids(repository, "main") == [PLAN.drill_id]


def test_a_repository_that_cannot_be_reached_is_not_taken_for_one_without_the_backup(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_raises(monkeypatch, RepositoryError("the network is gone"))
    with pytest.raises(RepositoryError, match="the network is gone"):
        scratch_datasets.execute(SETTINGS, INSTANCE, repository, PLAN.restore)
