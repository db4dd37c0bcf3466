"""Snapshots are made in the background: waited for, and their errors raised where one waits."""

from __future__ import annotations

import threading

import pytest

from zsnapdb.base.errors import ExistsError
from zsnapdb.zfs import core, snapshots


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
