"""A clone with snapshots that others made is not touched before they were named, and let go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import CloneSettings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import destroy as job
from zsnapdb.jobs.clone import volumes
from zsnapdb.jobs.clone.clone_info import CLONE_PROPERTY, COMMIT_PROPERTY
from zsnapdb.jobs.clone.destroy import CloneRemoval
from zsnapdb.jobs.clone.volumes import DETACHING
from zsnapdb.jobs.dataset_copies.sweep import ExtraRemoval
from zsnapdb.planning.clone.destroy_plan import removal
from zsnapdb.zfs import datasets, destruction, snapshots
from zsnapdb.zfs.datasets import Property

TOP = "tank/zsnapdb/clones/life"
THEIRS = Snapshot(f"{TOP}/r1", "autosnap_one", 1, 5)


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clone `life` with a snapshot of sanoid beside ours; what `destroy` changes."""
    made: list[str] = []
    unset = {name: Property("-", "-") for name in (CLONE_PROPERTY, COMMIT_PROPERTY, "clones")}
    unset["userrefs"] = Property("0", "-")
    listed = {
        THEIRS: {**unset, CLONE_PROPERTY: Property("life", f"inherited from {TOP}")},
        Snapshot(f"{TOP}/r1", "zsnapdb-one", 2, 4): {**unset, COMMIT_PROPERTY: Property("one", "local")},
        Snapshot(f"{TOP}/r1", f"{DETACHING}-2", 3, 6): {**unset, CLONE_PROPERTY: Property("life", "local")},
        Snapshot(f"{TOP}/r2", f"{DETACHING}-2", 3, 7): unset,
    }
    monkeypatch.setattr(datasets, "exists", lambda name: True)
    monkeypatch.setattr(snapshots, "below", lambda top, names: listed)
    monkeypatch.setattr(datasets, "set_properties", lambda name, values: made.append(f"set {name}"))
    monkeypatch.setattr(destruction, "members", lambda top, *marks: [top])
    monkeypatch.setattr(destruction, "destroy_snapshots_on", lambda names, *marks: made.extend(names))
    info: Any = SimpleNamespace(
        top=TOP,
        name="life",
        id="life",
        instance="main",
        source="backup",
        mount="/none",
        volumes={},
        datasets=(TOP,),
        pid=None,
    )
    monkeypatch.setattr(job, "plan_removal", lambda top, name, seen: CloneRemoval(removal({}, (), {})))
    monkeypatch.setattr(job, "of_dataset", lambda settings, host, name: info)
    monkeypatch.setattr(job, "commits_among", lambda seen: [])
    monkeypatch.setattr(job, "remove_all", lambda host, anchor, name, root, planned: made.append(f"remove {anchor}"))
    return made


SETTINGS: Any = SimpleNamespace(instance={}, clones=CloneSettings())


def test_what_is_neither_a_commit_nor_of_a_detach_is_of_others(changes: list[str]) -> None:
    assert [snapshot.name for snapshot in volumes.find_foreign_snapshots(TOP, "life")] == [THEIRS.full_name]


def test_a_clone_with_a_snapshot_of_others_is_not_touched(changes: list[str]) -> None:
    with pytest.raises(PreflightError, match=r"autosnap_one \(made by sanoid\)"):
        job.destroy_locked(SETTINGS, THIS_HOST, "life")
    assert changes == []


def test_with_the_option_the_snapshot_goes_first_and_then_the_clone(changes: list[str]) -> None:
    job.destroy_locked(SETTINGS, THIS_HOST, "life", [ExtraRemoval.FOREIGN_SNAPSHOTS])
    assert changes == [THEIRS.full_name, f"remove {TOP}"]
