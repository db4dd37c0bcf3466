"""`binlog archive --once` next to a running archiver waits until that one has archived the present binlogs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from tests.unit.support.events import Recorder
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import BusyError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.binlog import archive_run
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles
from zsnapdb.report.binlog import ArchivingView


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    made = ProtectedServer.make(tmp_path, monkeypatch)
    made.server.commit(2)
    made.look()
    monkeypatch.setattr(archive_run, "find_source", lambda session: source_of(made.server))
    monkeypatch.setattr(Instance, "session", lambda self, **_: open("/dev/null"))  # noqa: SIM115
    return made


def source_of(server: Server) -> BinlogSource:
    return BinlogSource(Flavour.MYSQL, server.uuid, 1, server.folder / "binlog.index", server.folder, server.folder)


def instance_of(protected: ProtectedServer, said: list[str], tmp_path: Path) -> Instance:
    instance = protected.instance()
    return replace(instance, events=Recorder(said), host=replace(instance.host, run=tmp_path))


@pytest.mark.parametrize("then", ["nothing", "commits", "rotates"])
def test_once_next_to_an_archiver_ends_with_its_archive(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str
) -> None:
    """The archiver archives while the command waits, and the server goes on meanwhile."""
    server, said, pauses = protected.server, list[str](), list[float]()
    if then != "nothing":
        server.commit(3)

    def archive_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            if then == "rotates":
                server.rotate()
                server.commit()
            protected.look()

    monkeypatch.setattr(time, "sleep", archive_meanwhile)
    instance = instance_of(protected, said, tmp_path)
    goal = LocalFiles(source_of(server)).list()[-1]
    with lock_instance(instance, "binlog", "archiving the binlogs of"):
        result = archive_run.archive_once(instance)
    assert result.end is not None
    assert (result.end.file, result.is_by_another) == (goal.name, True)
    assert result.end.offset >= goal.size
    assert len(pauses) == (0 if then == "nothing" else 2)
    (line,) = said
    assert "is archiving the binlogs of instance main; waiting" in line
    assert "archiver that is running" in ArchivingView("main", result).text()


def test_once_next_to_an_archiver_that_stands_still_is_refused(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    protected.server.commit()
    now = iter(range(0, 10_000, 5))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    instance = instance_of(protected, [], tmp_path)
    with lock_instance(instance, "binlog", "archiving the binlogs of"):
        monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
        with pytest.raises(BusyError):
            archive_run.archive_once(instance)
