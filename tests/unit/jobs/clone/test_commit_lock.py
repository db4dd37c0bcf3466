"""The commit of a clone blocks writes as a backup does: by a lock with a deadline, released however the block ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.mysql.test_locks import Fake, process
from zsnapdb.base.errors import LockNotGranted
from zsnapdb.jobs.clone import commits


class FakeInfo:
    pid: int | None = 1
    name = "c1"
    label = "c1"


def sessions_of(monkeypatch: pytest.MonkeyPatch, *fakes: Fake) -> None:
    left = iter(fakes)

    class Opened:
        def __init__(self, _: Any) -> None:
            self.fake = next(left)

        def __enter__(self) -> Fake:
            return self.fake

        def __exit__(self, *_: object) -> None:
            self.fake.close()

    monkeypatch.setattr(commits, "session", Opened)


def test_a_commit_locks_and_unlocks_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, second = Fake(1), Fake(2)
    sessions_of(monkeypatch, owner, second)
    with commits.writes_paused(FakeInfo()):  # type: ignore[arg-type]
        assert owner.statements[-1] == "FLUSH TABLES WITH READ LOCK"
    assert owner.statements[-1] == "UNLOCK TABLES"
    assert second.statements == []


def test_a_commit_ends_no_statement_that_is_in_its_way_and_does_not_lock_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = Fake(1, processes=[process(7, 60, "SELECT SLEEP(600)")])
    sessions_of(monkeypatch, owner, Fake(2))
    monkeypatch.setattr(commits, "_PATIENCE_SECONDS", 0.0)
    with (
        pytest.raises(LockNotGranted, match="connection 7") as refusal,
        commits.writes_paused(FakeInfo()),  # type: ignore[arg-type]
    ):
        pass
    assert not [sql for sql in owner.statements if sql.startswith(("FLUSH", "KILL"))]
    assert "clone c1" in refusal.value.hint
    assert "lock." not in refusal.value.hint


def test_a_commit_requests_its_lock_again_on_new_connections_until_the_statement_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked = [Fake(number, processes=[process(7, 60, "SELECT SLEEP(600)")]) for number in (1, 3)]
    owner = Fake(5)
    sessions_of(monkeypatch, blocked[0], Fake(2), blocked[1], Fake(4), owner, Fake(6))
    monkeypatch.setattr(commits, "delays", lambda: iter([0.0] * 9), raising=False)
    with commits.writes_paused(FakeInfo()):  # type: ignore[arg-type]
        assert owner.statements[-1] == "FLUSH TABLES WITH READ LOCK"
    assert owner.statements[-1] == "UNLOCK TABLES"
    assert all(fake.is_closed for fake in blocked)


def test_an_error_under_a_commits_lock_is_not_taken_for_a_lock_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions_of(monkeypatch, Fake(1), Fake(2))
    refused = LockNotGranted("from the block")
    with pytest.raises(LockNotGranted) as seen, commits.writes_paused(FakeInfo()):  # type: ignore[arg-type]
        raise refused
    assert seen.value.message.startswith("from the block")


def test_whatever_is_raised_under_a_commits_lock_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Fake(1)
    sessions_of(monkeypatch, owner, Fake(2))
    with pytest.raises(KeyError), commits.writes_paused(FakeInfo()):  # type: ignore[arg-type]
        raise KeyError("x")
    assert owner.is_closed


def test_a_clone_whose_server_does_not_run_needs_no_lock() -> None:
    info = FakeInfo()
    info.pid = None
    with commits.writes_paused(info):  # type: ignore[arg-type]
        pass
