"""A clone of the pool is no longer current if `zfs rollback` took its state back from production."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from tests.unit.support.clone_pool import origin
from zsnapdb.base.errors import NotFound
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone.sources import has_state, production_history
from zsnapdb.zfs import datasets, replaced_data, snapshots

SET = "20261119T100000Z-0001"
NAME = f"zsnapdb-{SET}"


def instance(more: str = "") -> Instance:
    text = '[repository.r]\nurl = "file:///store"\n[instance.main]\nsocket = "/run/mysqld.sock"\nrepository = "r"\n'
    return Instance.of(parse(text + more, "test"), "main")


@pytest.mark.parametrize(
    ("set_id", "is_here", "snapshot_names", "bookmark_names", "has"),
    [
        (SET, True, {NAME}, set(), True),
        (SET, True, set(), {NAME}, True),
        (SET, True, set(), {NAME, "replaced"}, False),
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

    def abandoned_bookmarks(places: Collection[str], *, if_unknown: bool) -> Mapping[str, int]:
        return {f"{place}#{NAME}": 1 for place in places if "replaced" in bookmark_names and not if_unknown}

    monkeypatch.setattr(replaced_data, "abandoned_bookmarks", abandoned_bookmarks)
    assert has_state(instance(), origin(), set_id) == has


@pytest.mark.parametrize("has", [True, False])
def test_state_of_renamed_production_is_that_of_its_volumes(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    """The set was received, and its origin names the datasets from before `zfs rename`."""

    def created_in(place: str, names: Sequence[str]) -> Mapping[str, int]:
        assert place == "tank/renamed"
        return dict.fromkeys(names, 1) if has else {}

    monkeypatch.setattr(datasets, "exists", lambda name: name == "tank/renamed")
    monkeypatch.setattr(snapshots, "created_in", created_in)
    monkeypatch.setattr(snapshots, "bookmarks", lambda _: {})
    assert has_state(instance('volumes = { data = "tank/renamed" }'), origin(), SET) == has


def test_history_of_renamed_production_ends_with_its_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind replaces datasets whose names are not those of a received set's origin."""
    guids = {"tank/renamed": 1}

    def guids_of(names: Sequence[str]) -> Mapping[str, int]:
        if not set(names) <= guids.keys():
            raise NotFound("no such dataset")
        return {name: guids[name] for name in names}

    monkeypatch.setattr(datasets, "guids", guids_of)
    renamed = instance('volumes = { data = "tank/renamed" }')
    before = production_history(renamed, origin())
    assert production_history(renamed, origin()) == before
    guids["tank/renamed"] = 2
    assert production_history(renamed, origin()) != before
