"""A store that remembers asks for everything once, and knows when something is not as it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.unit.support.fleet_yard import CountingStore
from zsnapdb.base.errors import NotFound
from zsnapdb.store.layers import RememberingStore
from zsnapdb.store.local import LocalStore


class Place:
    """A folder with two objects, and what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.store, self.asked, self.read = LocalStore(folder), Counter[str](), list[str]()
        for key in ("a/1.json", "a/2.json", "b/lone.json"):
            self.store.put(key, key.encode())

    def open(self, before: RememberingStore | None = None) -> RememberingStore:
        counting = CountingStore(self.store, self.asked, self.read)
        return RememberingStore(counting, before.kept if before is not None else None)

    def look(self, before: RememberingStore | None = None) -> RememberingStore:
        """List one folder, and read its objects and one that no listing names."""
        store = self.open(before)
        for item in store.list("a/"):
            store.get(item.key)
        store.get("b/lone.json")
        with pytest.raises(NotFound):
            store.get("b/none.json")
        return store


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_as_it_was_is_not_fetched_again(place: Place) -> None:
    first = place.look()
    place.read.clear()
    second = place.open()
    assert second.is_as(first.trace)
    # What no listing names can be compared only by reading it.
    assert place.read == ["b/lone.json", "b/none.json"]
    place.read.clear()
    again = place.look(first)
    assert place.read == ["b/lone.json", "b/none.json"]
    assert again.get("a/1.json") == b"a/1.json"


@pytest.mark.parametrize("key", ["a/1.json", "a/3.json", "b/lone.json", "b/none.json"])
def test_whatever_is_new_or_replaced_shows(place: Place, key: str) -> None:
    first = place.look()
    place.store.put(key, b"XXXXXXXX")
    assert not place.open().is_as(first.trace)
    place.read.clear()
    changed = place.open(first)
    list(changed.list("a/"))
    assert changed.get(key) == b"XXXXXXXX"
    assert place.read == [key]


def test_whatever_was_removed_shows(place: Place) -> None:
    first = place.look()
    place.store.delete("a/2.json")
    assert not place.open().is_as(first.trace)


def test_what_was_removed_after_it_was_listed_is_in_no_later_listing(place: Place) -> None:
    store = place.open()
    assert [item.key for item in store.list("a/")] == ["a/1.json", "a/2.json"]
    place.store.delete("a/2.json")
    with pytest.raises(NotFound):
        store.get("a/2.json")
    assert [item.key for item in store.list("a/")] == ["a/1.json"]


def test_each_listing_and_each_object_is_asked_for_once(place: Place) -> None:
    store = place.look()
    for item in store.list("a/"):
        store.get(item.key)
    assert (place.asked["list"], place.asked["get"]) == (1, 4)
