"""A live set goes without its clones. A backup stays, even if another program gave it the state of a live set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.jobs.clone import destroy
from zsnapdb.zfs import snapshots

SET_ID = "20261120T100000Z-000a"
NAME = f"zsnapdb-{SET_ID}"
PLACES = {"data": "tank/db", "log": "tank/log"}


@pytest.mark.parametrize(
    ("bookmark", "guid", "is_unused"),
    [
        (f"tank/log#{NAME}", 2, False),
        (f"tank/log#{NAME}", 9, True),
        ("tank/log#of-another-program", 2, True),
        (None, 0, True),
    ],
)
def test_set_with_a_bookmark_of_a_backup_is_no_live_set(
    monkeypatch: pytest.MonkeyPatch, bookmark: str | None, guid: int, is_unused: bool
) -> None:
    made = {role: Snapshot(place, NAME, number, 7) for number, (role, place) in enumerate(PLACES.items(), 1)}
    live = SnapshotSet(SET_ID, made)
    known = {"tank/db": {}, "tank/log": {guid: bookmark} if bookmark else {}}
    monkeypatch.setattr(destroy, "described_sets", lambda *words, only: [SimpleNamespace(set=live)])
    monkeypatch.setattr(snapshots, "has_clones", lambda name: False)
    monkeypatch.setattr(snapshots, "bookmarks", lambda places: known)
    instance: Any = SimpleNamespace(volumes=PLACES)
    assert destroy.unused_live(instance) == ([live] if is_unused else [])
