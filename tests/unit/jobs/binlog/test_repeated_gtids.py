"""A server that was set back and gives GTIDs a second time is named by the archiver and the doctor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.events import Recorder
from zsnapdb.jobs.binlog import archive_run
from zsnapdb.jobs.binlog.archive_run import NewHistoryWatch
from zsnapdb.jobs.binlog.archiver import CompletenessRecorder
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.health.recovery_coverage import repeated
from zsnapdb.report.binlog import ArchivingView
from zsnapdb.repository.binlog_archive import BinlogArchive


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """A server with a backup, whose five transactions after it are archived."""
    made = ProtectedServer.make(tmp_path, monkeypatch)
    made.server.commit()
    made.back_up()
    made.server.rotate()
    made.server.look()
    return made


def test_archiver_and_doctor_name_what_a_server_that_was_set_back_gives_again(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, said = protected.server, list[str]()
    state = server.saved()
    server.commit(5)
    archiver = server.archiver()
    watch = NewHistoryWatch(replace(protected.instance(), events=Recorder(said)), pytest.fail)
    watch.after(archiver.look())
    assert said == []
    assert [found for found in instance_checks.describe_stored(protected.instance()) if found.what == "histories"] == []
    server.set_back(state)
    server.commit(2)
    for _ in range(3):
        watch.after(archiver.look())
    cause = "because it was set back, reset or copied"
    expected = f"{server.uuid} gives GTIDs a second time, {cause}: {server.uuid}:2-6 stand for"
    (warned,) = [line for line in said if "second time" in line]
    assert expected in warned
    (finding,) = [
        found for found in instance_checks.describe_stored(protected.instance()) if "second time" in found.detail
    ]
    assert expected in finding.detail
    assert "auto.cnf" in finding.hint


def test_one_round_of_the_archiver_shows_it(protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = protected.server
    state = server.saved()
    server.commit(5)
    server.look()
    server.set_back(state)
    monkeypatch.setattr(archive_run, "find_source", lambda session: None)
    monkeypatch.setattr(CompletenessRecorder, "before", lambda self, session: None)
    monkeypatch.setattr(archive_run, "archiver_of", lambda *words: server.archiver())
    monkeypatch.setattr(archive_run, "open_archive", lambda instance: None)
    monkeypatch.setattr(type(protected.instance()), "session", lambda self, **_: open("/dev/null"))  # noqa: SIM115
    shown = ArchivingView("main", archive_run.archive_once(protected.instance()))
    stored = BinlogArchive(protected.instance().open_repository(), "main").load()
    (history,) = {part.history for part in repeated(stored)}
    assert shown.fields()["repeated_gtids"] == [{"history": history, "gtids": f"{server.uuid}:2-6"}]
    assert "  REPEATED  " in shown.text()
