"""Snapshots are made in the background: waited for, and their errors raised where one waits."""

from __future__ import annotations

import threading

import pytest

from zsnapdb.base.errors import ExistsError, NotFound
from zsnapdb.zfs import datasets, libzfs, snapshots


def test_without_the_library_the_snapshot_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(libzfs, "load", lambda: None)
    monkeypatch.setattr(snapshots, "run", lambda argv, timeout: seen.append(argv))
    pending = snapshots.PendingSnapshots.of(["t/a@x", "t/b@x"], {"zsnapdb:lock": "none"})
    pending.finish()
    assert seen == []
    pending.start()
    pending.finish()
    assert seen == [["zfs", "snapshot", "-o", "zsnapdb:lock=none", "t/a@x", "t/b@x"]]


def test_a_snapshot_that_takes_too_long_is_told_but_waited_for() -> None:
    go = threading.Event()

    def make() -> None:
        go.wait(120)

    pending = snapshots.PendingSnapshots(make)
    pending.start()
    assert not pending.done_within(0.01)
    go.set()
    pending.finish()
    assert pending.done_within(0.0)


def test_the_thread_of_a_request_waits_for_its_start_and_ends_if_there_is_none() -> None:
    made: list[str] = []
    for is_wanted in (True, False):
        pending = snapshots.PendingSnapshots(lambda: made.append("set"))
        with pending.ready():
            assert (pending.done_within(0.0), made) == (False, [] if is_wanted else ["set"])
            if is_wanted:
                pending.start()
        pending.finish()
        assert pending.done_within(120)
    assert made == ["set"]


def test_an_error_of_the_snapshot_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ExistsError("there", hint="h")

    pending = snapshots.PendingSnapshots(fail)
    pending.start()
    with pytest.raises(ExistsError):
        pending.finish()


def test_snapshots_are_read_by_their_names_alone_and_what_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def rows(argv: list[str]) -> list[list[str]]:
        asked.append(argv)
        if "t/b@x" in argv:
            raise NotFound("t/b@x")
        return [[name, "1", str(len(name)), "mine"] for name in argv if "@" in name]

    monkeypatch.setattr(snapshots, "rows", rows)
    monkeypatch.setattr(datasets, "exists", lambda name: name != "t/b@x")
    (found,) = snapshots.owned_among(["t/a@x", "t/b@x"], ["zsnapdb:backup"])
    assert (found.snapshot.full_name, found.properties["zsnapdb:backup"]) == ("t/a@x", "mine")
    assert [[word for word in argv if "@" in word] for argv in asked] == [["t/a@x", "t/b@x"], ["t/a@x"]]
    assert all("-d" not in argv for argv in asked)
    assert snapshots.owned_among([], ["zsnapdb:backup"]) == []
    assert len(asked) == 2


def test_snapshots_that_vanish_while_others_are_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {f"t/a@{number}" for number in range(6)}

    def rows(argv: list[str]) -> list[list[str]]:
        asked = [word for word in argv if "@" in word]
        # Retention destroys one set after the other meanwhile.
        there.discard(min(there))
        missing = [name for name in asked if name not in there]
        if missing:
            raise NotFound(missing[0])
        return [[name, "1", "2", "mine"] for name in asked]

    monkeypatch.setattr(snapshots, "rows", rows)
    monkeypatch.setattr(datasets, "exists", lambda name: name in there)
    found = snapshots.owned_among(["t/a@3", "t/a@0", "t/a@1", "t/a@5"], ["zsnapdb:backup"])
    assert [one.snapshot.name for one in found] == ["3", "5"]


def test_many_names_are_asked_for_in_parts_and_come_back_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def rows(argv: list[str]) -> list[list[str]]:
        names = [word for word in argv if "@" in word]
        asked.append(len(names))
        return [[name, "1", str(1000 - int(name.partition("@")[2])), "mine"] for name in names]

    monkeypatch.setattr(snapshots, "rows", rows)
    found = snapshots.owned_among([f"t/a@{number}" for number in range(1000)], ["zsnapdb:backup"])
    assert [one.snapshot.name for one in found] == [str(number) for number in reversed(range(1000))]
    assert asked == [400, 400, 200]
