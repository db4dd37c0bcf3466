"""However a lock ends it is gone, in time.

A lock that was not granted differs from a lost lock; no foreign statement is ended without permission.

The sessions here stand in for a server only as far as the order of statements goes; tests/system/test_locks.py and
tests/faults/test_faults_under_lock.py ask real ones.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from zsnapdb.base.errors import LockError, LockNotGranted, ServerError
from zsnapdb.mysql.locks import LockTimeouts, Watchdog, holding, strategy


class Fake:
    """A session that records its statements.

    `blocked` statements wait until the session is killed; `failing` ones fail at once.
    """

    def __init__(
        self,
        number: int,
        *,
        blocked: str = "",
        failing: dict[str, ServerError] | None = None,
        processes: list[dict[str, Any]] | None = None,
    ) -> None:
        self.connection_id = number
        self.statements: list[str] = []
        self.is_closed = False
        self.victim: Fake | None = None
        self.killed = threading.Event()
        self._blocked = blocked
        self._failing = failing or {}
        self._processes = processes or []

    def query(self, sql: str) -> list[Any]:
        self.statements.append(sql)
        if self.victim is not None and sql == f"KILL {self.victim.connection_id}":
            self.victim.killed.set()
        if self.killed.is_set() and not sql.startswith("KILL"):
            raise ServerError(f"`{sql}`: gone (2013)")
        if sql in self._failing:
            raise self._failing[sql]
        if sql == self._blocked:
            assert self.killed.wait(120)
            raise ServerError(f"`{sql}`: Lost connection to MySQL server during query (2013)")
        return []

    def records(self, sql: str) -> list[dict[str, Any]]:
        self.statements.append(sql)
        return self._processes

    def is_same_connection(self) -> bool:
        return not self.killed.is_set()

    def close(self) -> None:
        self.is_closed = True


def hold(
    name: str, owner: Fake, second: Fake, *, deadline: float = 5.0, body: Any = None, kill: str = "never"
) -> float:
    second.victim = owner
    chosen, timeouts = strategy(name, longest=1.0, kill=kill), LockTimeouts(deadline, deadline)
    with holding(chosen, owner, Watchdog(second), timeouts) as lock:  # type: ignore[arg-type]
        if body is not None:
            body()
    return lock.held_ms


def test_a_lock_is_taken_and_released_by_one_connection() -> None:
    owner, second = Fake(1), Fake(2)
    assert hold("stage", owner, second) >= 0
    assert owner.statements == [
        "SET SESSION wait_timeout = 6, SESSION lock_wait_timeout = 4",
        "BACKUP STAGE START",
        "BACKUP STAGE BLOCK_COMMIT",
        "BACKUP STAGE END",
    ]
    assert second.statements == []
    assert not owner.is_closed


def test_a_statement_after_one_that_waited_waits_only_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, second = Fake(1), Fake(2)
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    query = owner.query

    def slow(sql: str) -> list[Any]:
        moment[0] += 1.5 if sql == "BACKUP STAGE START" else 0.001
        return query(sql)

    monkeypatch.setattr(owner, "query", slow)
    hold("stage", owner, second)
    assert owner.statements[1:4] == [
        "BACKUP STAGE START",
        "SET SESSION lock_wait_timeout = 3",
        "BACKUP STAGE BLOCK_COMMIT",
    ]


def test_a_statement_that_is_stuck_is_ended_by_the_watchdog_at_the_deadline() -> None:
    owner, second = Fake(1, blocked="LOCK INSTANCE FOR BACKUP"), Fake(2)
    began = time.monotonic()
    with pytest.raises(LockNotGranted, match=r"was still waiting at lock\.deadline = 0\.2 s and was ended"):
        hold("instance", owner, second, deadline=0.2)
    assert 0.15 < time.monotonic() - began < 60
    assert second.statements == ["KILL 1"]
    assert owner.is_closed


def test_a_block_that_overstays_loses_its_lock_at_the_deadline() -> None:
    """A busy machine may need a good part of a second to take the lock, so the deadline leaves room for that."""
    owner, second = Fake(1), Fake(2)
    with pytest.raises(LockError, match="was lost before the snapshot was confirmed") as caught:
        hold("instance", owner, second, deadline=1.0, body=lambda: owner.killed.wait(120))
    assert not isinstance(caught.value, LockNotGranted)
    assert second.statements == ["KILL 1"]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_whatever_is_raised_under_a_lock_ends_it(error: BaseException) -> None:
    owner, second = Fake(1), Fake(2)

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        hold("stage", owner, second, body=fail)
    assert owner.is_closed
    time.sleep(0.05)
    assert second.statements == []


def test_a_statement_somebody_ended_was_not_granted_and_may_be_tried_again() -> None:
    ended = ServerError("`FLUSH TABLES WITH READ LOCK`: Query execution was interrupted (1317)")
    with pytest.raises(LockNotGranted):
        hold("ftwrl", Fake(1, failing={"FLUSH TABLES WITH READ LOCK": ended}), Fake(2))


def test_an_account_that_may_not_lock_is_not_told_to_try_again() -> None:
    denied = ServerError("`LOCK INSTANCE FOR BACKUP`: Access denied (1227)")
    with pytest.raises(ServerError) as caught:
        hold("instance", Fake(1, failing={"LOCK INSTANCE FOR BACKUP": denied}), Fake(2))
    assert not isinstance(caught.value, LockError)


def process(number: int, seconds: int, text: str) -> dict[str, Any]:
    return {"Id": number, "User": "app", "Command": "Query", "Time": seconds, "Info": text, "State": "executing"}


def test_a_global_read_lock_that_is_not_even_tried_ends_nobodys_statement() -> None:
    busy = [process(7, 9, "UPDATE t SET a = 1"), process(8, 0, "SELECT 1")]
    owner, second = Fake(1, processes=busy), Fake(2, processes=busy)
    with pytest.raises(LockNotGranted, match="connection 7"):
        hold("ftwrl", owner, second, kill="select")
    assert not [sql for sql in owner.statements + second.statements if "KILL" in sql or "FLUSH" in sql]


def test_after_an_attempt_only_queries_as_old_as_it_are_ended_and_only_where_allowed() -> None:
    later = [process(7, 30, "SELECT SLEEP(60)"), process(8, 0, "SELECT 1"), process(9, 30, "UPDATE t SET a = 1")]
    timeout = {"FLUSH TABLES WITH READ LOCK": LockNotGranted("Lock wait timeout exceeded (1205)")}
    for kill, ended in (("never", []), ("select", ["KILL QUERY 7"]), ("all", ["KILL QUERY 7"])):
        second = Fake(2, processes=later)
        with pytest.raises(LockNotGranted) as caught:
            hold("ftwrl", Fake(1, failing=dict(timeout)), second, kill=kill)
        assert [sql for sql in second.statements if "KILL" in sql] == ended
        assert ("connection 7" in caught.value.message) == (kill == "never")
