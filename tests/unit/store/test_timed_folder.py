"""A folder whose file system hangs is a store that cannot be reached, and nobody waits for it twice."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zsnapdb.base.errors import NotFound, UnreachableError
from zsnapdb.store import local
from zsnapdb.store.local import LocalStore, TimedFolder

SECONDS = 0.3


class Hanging(LocalStore):
    """A folder of which each call hangs until its server answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answers = threading.Event()

    def check(self) -> None:
        self.answers.wait()

    def get(self, key: str) -> bytes:
        self.answers.wait()
        return super().get(key)


CALLS: dict[str, Callable[[TimedFolder], object]] = {
    "check": lambda store: store.check(),
    "get": lambda store: store.get("a"),
    "put": lambda store: store.put("a", b"x"),
    "list": lambda store: list(store.list("")),
}


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(local, "CALL_SECONDS", SECONDS)
    made = Hanging(tmp_path)
    yield made
    made.answers.set()


@pytest.mark.parametrize("name", ["check", "get", "put"])
def test_call_that_hangs_is_left_and_further_ones_are_refused(hanging: Hanging, name: str) -> None:
    store = TimedFolder(hanging, hanging.folder)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="does not answer"):
        CALLS[name](store)
    assert time.monotonic() - began < 5
    for call in CALLS.values():
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            call(store)
        assert time.monotonic() - began < SECONDS
    hanging.answers.set()
    deadline = time.monotonic() + 5
    while True:
        try:
            store.put("b", b"later")
            break
        except UnreachableError:
            assert time.monotonic() < deadline
    assert store.get("b") == b"later"


def test_errors_and_objects_are_those_of_the_folder(tmp_path: Path) -> None:
    store = TimedFolder(LocalStore(tmp_path), tmp_path)
    for number in range(5):
        store.put(f"p/{number}", b"x")
    with pytest.raises(NotFound):
        store.get("p/9")
    assert [item.key for item in store.list("p/")] == [f"p/{number}" for number in range(5)]


def test_long_listing_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LISTED_AT_ONCE", 2)
    store = TimedFolder(LocalStore(tmp_path), tmp_path)
    for number in range(5):
        store.put(f"p/{number}", b"x")
    assert len(list(store.list("p/"))) == 5
    assert list(store.folders("")) == ["p"]


def test_forked_process_has_a_thread_of_its_own(tmp_path: Path) -> None:
    store = TimedFolder(LocalStore(tmp_path), tmp_path)
    store.put("a", b"x")
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork beside threads, which is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if store.get("a") == b"x" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_end_with_those_that_they_work_for(tmp_path: Path) -> None:
    store = TimedFolder(LocalStore(tmp_path), tmp_path)
    before = threading.active_count()
    for _ in range(5):
        asking = threading.Thread(target=store.check)
        asking.start()
        asking.join()
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
