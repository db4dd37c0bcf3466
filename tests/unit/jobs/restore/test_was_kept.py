"""A step whose snapshots an interrupted run has made is not repeated: what it would begin from may be gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from zsnapdb.jobs.restore import startup_steps
from zsnapdb.jobs.restore.startup_steps import ServerWork, was_kept
from zsnapdb.zfs import destruction, snapshots
from zsnapdb.zfs.destruction import Mark


@dataclass(frozen=True)
class Two:
    """A restore of two volumes."""

    datasets: tuple[str, ...] = ("tank/r", "tank/r/data")
    mark: Mark = Mark("zsnapdb:restored", "20261120T093000Z-5e75")  # noqa: RUF009


@pytest.mark.parametrize(
    ("here", "is_kept", "gone"),
    [
        (["recover"], False, []),
        (["recover", "replay-1"], True, ["tank/r@zsnapdb-restore-recover", "tank/r/data@zsnapdb-restore-recover"]),
        (["replay-1"], True, []),
        ([], False, []),
    ],
)
def test_a_step_is_kept_once_all_its_snapshots_are_there(
    monkeypatch: pytest.MonkeyPatch, here: list[str], is_kept: bool, gone: list[str]
) -> None:
    destroyed: list[str] = []
    monkeypatch.setattr(
        snapshots,
        "names_of",
        lambda datasets: [f"{name}@{startup_steps.STEP_SNAPSHOT}{step}" for name in datasets for step in here],
    )
    monkeypatch.setattr(destruction, "destroy_snapshot", lambda name, *_marks: destroyed.append(name))
    assert was_kept(cast("ServerWork", cast("Any", Two())), "replay-1") is is_kept
    assert destroyed == gone
