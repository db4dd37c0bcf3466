"""Snapshots are made in the background: waited for, and their errors raised where one waits."""

from __future__ import annotations

import threading

import pytest

from zsnapdb.base.errors import ExistsError
from zsnapdb.zfs import core, datasets, snapshots


def test_without_the_library_the_snapshot_command_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(core, "load", lambda: None)
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


def test_an_error_of_the_snapshot_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ExistsError("there", hint="h")

    pending = snapshots.PendingSnapshots(fail)
    pending.start()
    with pytest.raises(ExistsError):
        pending.finish()


def test_the_snapshots_of_one_name_are_listed_however_many_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def rows(argv: list[str]) -> list[list[str]]:
        asked.append(argv)
        return [["t/a@x", "1", "2", "mine"]]

    monkeypatch.setattr(snapshots, "rows", rows)
    monkeypatch.setattr(datasets, "exists", lambda name: name == "t/a@x")
    (found,) = snapshots.owned(["t/a", "t/b"], ["zsnapdb:backup"], "x")
    assert (found.snapshot.full_name, found.properties["zsnapdb:backup"]) == ("t/a@x", "mine")
    ((*_, last),) = asked
    assert last == "t/a@x"
    assert "-d" not in asked[0]
    assert snapshots.owned(["t/b"], ["zsnapdb:backup"], "x") == []
    assert len(asked) == 1
