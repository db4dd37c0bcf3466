"""A clone of the pool is no longer current if `zfs rollback` took its state back from production."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.unit.support.clone_pool import origin
from zsnapdb.jobs.clone.sources import has_state
from zsnapdb.zfs import datasets, snapshots

SET = "20261119T100000Z-0001"
NAME = f"zsnapdb-{SET}"


@pytest.mark.parametrize(
    ("set_id", "is_here", "snapshot_names", "bookmark_names", "has"),
    [
        (SET, True, {NAME}, set(), True),
        (SET, True, set(), {NAME}, True),
        (SET, True, {"zsnapdb-20261119T100000Z-0002"}, {"zsnapdb-20261119T100000Z-0002"}, False),
        (SET, False, set(), set(), True),
        ("@daily", True, set(), set(), True),
    ],
)
def test_rolled_back_state_is_not_of_production(
    monkeypatch: pytest.MonkeyPatch,
    set_id: str,
    is_here: bool,
    snapshot_names: Collection[str],
    bookmark_names: Collection[str],
    has: bool,
) -> None:
    def created_in(_: str, names: Sequence[str]) -> Mapping[str, int]:
        return {name: 1 for name in names if name in snapshot_names}

    def bookmarks(places: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        return {place: {at: f"{place}#{name}" for at, name in enumerate(bookmark_names)} for place in places}

    monkeypatch.setattr(datasets, "exists", lambda _: is_here)
    monkeypatch.setattr(snapshots, "created_in", created_in)
    monkeypatch.setattr(snapshots, "bookmarks", bookmarks)
    assert has_state(origin(), set_id) == has
