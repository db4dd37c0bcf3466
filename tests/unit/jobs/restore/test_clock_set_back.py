"""After a server's clock was set back, a time leads to a state that the server had at that time, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.binlog_archive import UUID
from zsnapdb.base.errors import ZsnapdbError


def moment(clock: float) -> str:
    return datetime.fromtimestamp(clock, UTC).isoformat()


def states_at(passed: Sequence[tuple[int, int]], clock: float) -> set[int]:
    """Return how many transactions the server had whenever its clock showed this time.

    `passed` are the clock and the number of transactions after each change, in order.
    """
    return {
        state
        for (before, state), (after, _) in pairwise([*passed, (passed[-1][0] + 1000, passed[-1][1])])
        if before <= clock <= after
    }


@pytest.mark.parametrize("rotated", ["never", "before the backup", "before the clock is set back"])
def test_a_backup_of_before_is_not_restored_for_a_time_that_it_is_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rotated: str
) -> None:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server, passed = protected.server, list[tuple[int, int]]()

    def note() -> None:
        passed.append((server.clock, server.executed))

    def commit(count: int) -> None:
        for _ in range(count):
            server.commit()
            note()

    def back_up() -> None:
        protected.back_up()
        note()

    commit(5)
    back_up()
    commit(12)
    if rotated == "before the backup":
        server.rotate()
    server.look()
    back_up()
    commit(3)
    if rotated == "before the clock is set back":
        server.rotate()
    server.clock -= 10
    note()
    back_up()
    server.clock += 8
    commit(20)
    server.look()
    server.rotate()
    commit(1)
    server.look()
    for clock in range(passed[5][0], server.clock):
        try:
            gtids = protected.plan(moment(clock + 0.5)).point.gtids
        except ZsnapdbError:
            continue
        assert gtids is not None
        assert int(gtids.rpartition("-")[2].rpartition(":")[2]) in states_at(passed, clock + 0.5), clock


def test_the_plan_of_the_latest_state_says_that_its_time_is_the_latest_of_a_binlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server = protected.server
    protected.back_up()
    server.commit()
    latest = datetime.fromtimestamp(server.clock, UTC)
    server.clock -= 100
    server.commit()
    server.look()
    last = protected.plan().point.last
    assert last is not None
    assert (last.time_of, last.gtid) == ("binlog", f"{UUID}:{server.executed}")
    assert last.committed >= latest
    assert "or before if the server's clock was set back" in last.describe()
    exact = protected.plan(f"{UUID}:{server.executed}").point.last
    assert exact is not None
    assert (exact.time_of, exact.committed < latest) == ("transaction", True)
