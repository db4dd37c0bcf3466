"""Relay logs are read once: for the tables whose engine no statement says, and for the states of scheduled events."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest

from tests.unit.support.binlog_file import File
from zsnapdb.base import safe_open
from zsnapdb.jobs.restore import replay
from zsnapdb.mysql.replication.replay import RelayLogs
from zsnapdb.planning.binlog.event_states import EventState, EventStates
from zsnapdb.planning.restore.steps import LogPart, Replay


def test_one_reading_finds_tables_and_event_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, opened = RelayLogs(tmp_path / "relay"), []
    first = File().previous(5).gtid(6).query(b"DROP EVENT kept").mark("start")
    first = first.gtid(7).query(b"CREATE EVENT made ON SCHEDULE EVERY 1 DAY DO SELECT 1").gtid(8)
    first = first.query(b"CREATE TABLE t (id INT)")
    second = File().previous(8).mark("start").gtid(9).query(b"ALTER EVENT kept DISABLE")
    for number, file in enumerate((first, second), 1):
        logs.file(number).write_bytes(bytes(file.data))
    parts = (LogPart("i", f"binlog.{n}", 1, file.marks["start"], None) for n, file in enumerate((first, second), 1))
    open_to_read = safe_open.open_to_read

    def count(path: Path) -> BinaryIO:
        opened.append(path)
        return open_to_read(path)

    monkeypatch.setattr(safe_open, "open_to_read", count)
    states: EventStates = {("app", "kept"): EventState.ENABLED}
    tables = replay._read(Replay(1, tuple(parts), None), logs, states)
    assert [(number, str(table)) for number, table in tables] == [(1, "app.t")]
    assert states == {("app", "kept"): EventState.DISABLED, ("app", "made"): EventState.ENABLED}
    assert opened == [logs.file(1), logs.file(2)]
