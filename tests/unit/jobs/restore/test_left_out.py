"""A rewind counts what it leaves out in the binlogs on the host, and archives the rest of them first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from tests.unit.support.row_events import TABLE_MAP, WRITE, rows, table, transaction, value
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import archive_run
from zsnapdb.jobs.binlog.archiver import CompletenessRecorder
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles
from zsnapdb.jobs.restore.left_out import archive_rest, read
from zsnapdb.planning.restore.left_out import LeftOut, LeftOutCounter


def source_of(server: Server) -> BinlogSource:
    return BinlogSource(Flavour.MYSQL, server.uuid, 1, server.folder / "binlog.index", server.folder, server.folder)


def written(folder: Path, *, files: int) -> Server:
    """Return a server with two transactions in each of the first binlogs, and with an empty newest binlog."""
    server = Server(folder, is_encrypted=False)
    for _ in range(files):
        for _ in range(2):
            server.executed += 1
            transaction(server.newest, server.executed, (TABLE_MAP, table()), (WRITE, rows(value(1, b"one"))))
        server.rotate()
    return server


def counted(server: Server, point: int, most: int = 1 << 20) -> LeftOut:
    gtids = [GtidSet.parse(f"{server.uuid}:1-{number}") for number in (point, server.executed)]
    return read(LocalFiles(source_of(server)), LeftOutCounter(Flavour.MYSQL, gtids[0], gtids[1]), most)


def test_binlogs_before_the_point_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, opened = written(tmp_path, files=3), list[str]()
    own = LocalFiles.open

    def noting(files: LocalFiles, name: str) -> BinaryIO:
        opened.append(name)
        return own(files, name)

    monkeypatch.setattr(LocalFiles, "open", noting)
    result = counted(server, 3)
    assert (result.transactions, result.is_least, result.unknown) == (3, False, ())
    assert opened == ["binlog.000002", "binlog.000003", "binlog.000004"]
    assert (result.first, result.last) == (4_000_000, 6_000_000)
    assert [(one.name, one.inserted) for one in result.tables] == [("app.t", 3)]


def test_binlogs_beyond_the_limit_are_named_and_not_read(tmp_path: Path) -> None:
    server = written(tmp_path, files=3)
    result = counted(server, 1, most=1)
    assert (result.transactions, result.last) == (5, None)
    assert "the binlogs from binlog.000002 on" in result.unknown[0]


def test_a_damaged_binlog_is_said(tmp_path: Path) -> None:
    server = written(tmp_path, files=2)
    path = server.folder / "binlog.000001"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    result = counted(server, 1)
    assert (result.transactions, "binlog.000001" in result.unknown[0]) == (3, True)


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    made = ProtectedServer.make(tmp_path, monkeypatch)
    monkeypatch.setattr(archive_run, "find_source", lambda session: source_of(made.server))
    monkeypatch.setattr(Instance, "session", lambda self, **_: open("/dev/null"))  # noqa: SIM115
    monkeypatch.setattr(CompletenessRecorder, "before", lambda self, session: None)
    return made


def instance_of(protected: ProtectedServer, tmp_path: Path) -> Instance:
    instance = protected.instance()
    return replace(instance, host=replace(instance.host, run=tmp_path))


def test_what_the_archive_lacks_is_archived(protected: ProtectedServer, tmp_path: Path) -> None:
    protected.server.commit(2)
    protected.look()
    protected.server.commit(3)
    rest = archive_rest(instance_of(protected, tmp_path))
    assert rest.end is not None
    assert (rest.end.file, rest.end.offset, rest.missing) == ("binlog.000001", len(protected.server.newest.data), "")
    assert rest.history == protected.server.archive().load().files[-1].incarnation


def test_an_archive_without_binlogs_is_not_begun(protected: ProtectedServer, tmp_path: Path) -> None:
    protected.server.commit(2)
    protected.server.archive()
    rest = archive_rest(instance_of(protected, tmp_path))
    assert (rest.end, "has no binlogs" in rest.missing) == (None, True)


def test_a_server_that_does_not_answer_is_said(
    protected: ProtectedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected.server.commit(2)
    protected.look()

    def refuse(_: object) -> None:
        raise ServerError("the server does not answer")

    monkeypatch.setattr(archive_run, "open_session", refuse)
    assert archive_rest(instance_of(protected, tmp_path)).missing == "the server does not answer"
