"""Binlogs that the server still has are copied on the host; their bytes are proved by the archive's hashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, UnreachableError
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.restore import offline_repository
from zsnapdb.jobs.restore.backup_selection import located_in
from zsnapdb.jobs.restore.replay import fetch_logs
from zsnapdb.mysql.replication.replay import RelayLogs
from zsnapdb.planning.restore.replays import located
from zsnapdb.planning.restore.steps import LogPart, Replay
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.repository.manifest import server_source
from zsnapdb.repository.repository import Repository
from zsnapdb.store.layers import Layer
from zsnapdb.store.local import LocalStore


class Descriptions(Layer):
    """A store that gives descriptions, and refuses the bodies of binlogs."""

    def get(self, key: str) -> bytes:
        """Return a description."""
        assert not {"chunks", "segments"} & set(key.split("/")), key
        return self.inner.get(key)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server with a rotated and an active binlog, both archived; the active one has grown since."""
    server = Server(tmp_path)
    server.commit(3)
    server.look()
    server.rotate()
    server.commit(2)
    server.look()
    server.commit(2)
    server.store = Descriptions(server.store)
    return server


def local(server: Server) -> LocalBinlogs:
    folder = str(server.folder)
    return LocalBinlogs.of({"datadir": folder, "log_bin_basename": f"{folder}/binlog"}, ())


def archived(server: Server) -> tuple[BinlogArchive, tuple[ArchivedFile, ...]]:
    return server.archive(), server.load().files


def test_no_body_is_fetched_of_a_binlog_that_the_server_still_has(server: Server, tmp_path: Path) -> None:
    archive, files = archived(server)
    assert [file.is_rotated for file in files] == [True, False]
    for file in files:
        target = tmp_path / f"copy-{file.name}"
        assert local(server).copy(archive, file, target)
        plain = bytearray(server.files[file.name].data)
        plain[21] &= ~1
        assert target.read_bytes() == bytes(plain[: file.end])


def test_a_binlog_with_one_other_bit_is_not_taken_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    archive, files = archived(server)
    for file in files:
        path = server.folder / file.name
        data = bytearray(path.read_bytes())
        data[file.end - 5] ^= 1
        path.write_bytes(bytes(data))
        assert not local(server).copy(archive, file, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


def test_a_binlog_that_is_shorter_another_one_gone_or_a_link_is_not_taken(server: Server, tmp_path: Path) -> None:
    archive, files = archived(server)
    first, second = files
    path = server.folder / first.name
    whole = path.read_bytes()
    path.write_bytes(whole[: first.end - 1])
    assert not local(server).has(first)
    path.write_bytes((server.folder / second.name).read_bytes() * 2)
    assert not local(server).has(first)
    path.unlink()
    assert not local(server).has(first)
    (tmp_path / "elsewhere").write_bytes(whole)
    path.symlink_to(tmp_path / "elsewhere")
    assert not local(server).has(first)
    assert not local(server).copy(archive, first, tmp_path / "copy")
    (server.folder / "binlog.index").unlink()
    assert not local(server).has(second)


def test_the_plan_says_of_each_binlog_where_it_comes_from() -> None:
    step = Replay(1, (LogPart("i", "b.1", 9, 4, 9), LogPart("i", "b.2", 9, 4, 9)), None)
    (marked,) = located([step], {("i", "b.2"), ("other", "b.1")})
    assert [log.is_local for log in marked.logs] == [False, True]
    assert "(1 from this host, 1 from the archive)" in marked.describe()
    assert "from this host" not in step.describe()


def test_while_the_store_is_away_the_binlogs_of_the_server_are_described_as_the_archive_does(
    server: Server, tmp_path: Path
) -> None:
    _, files = archived(server)
    folder = str(server.folder)
    source = server_source(manifest())
    at_first = source.position.model_copy(update={"binlog_file": "binlog.000001"})
    variables = {"datadir": folder, "log_bin_basename": f"{folder}/binlog"}
    part = source.server.model_copy(
        update={"flavour": Flavour.MYSQL, "server_uuid": server.uuid, "server_id": 1, "variables": variables}
    )
    here = manifest().model_copy(update={"source": source.model_copy(update={"server": part, "position": at_first})})
    (tmp_path / "empty").mkdir()
    stand_in = Repository(LocalStore(tmp_path / "empty"), "", "local")
    archive = offline_repository._HostArchive(stand_in, "main", (here,))
    described = archive.load().files
    assert [file.name for file in described] == [file.name for file in files]
    for mine, theirs in zip(described, files, strict=True):
        assert (mine.head.fingerprint, mine.server) == (theirs.head.fingerprint, theirs.server)
        assert (mine.previous, mine.start) == (theirs.previous, theirs.start)
    step = Replay(1, tuple(LogPart(f.incarnation, f.name, f.end, f.start, f.end) for f in described), None)
    (marked,) = located_in((step,), archive.load(), local(server))
    assert {log.description for log in marked.logs} == {""}, "it is described again as far as it is replayed"
    # The active binlog has grown since it was archived.
    assert described[0].span == files[0].span
    assert (described[1].span.transactions, files[1].span.transactions) == (4, 2)
    for file in described:
        target = tmp_path / f"copy-{file.name}"
        assert local(server).copy(archive, file, target)
        assert target.stat().st_size == file.end
        with pytest.raises(UnreachableError):
            archive.fetch(file, tmp_path / "fetched")
    later = source.model_copy(
        update={"server": part, "position": at_first.model_copy(update={"binlog_file": "binlog.000002"})}
    )
    only = offline_repository._HostArchive(stand_in, "main", (here.model_copy(update={"source": later}),))
    assert [file.name for file in only.load().files] == ["binlog.000002"]
    (server.folder / "binlog.000002").write_bytes(b"no binlog")
    broken = archive.load()
    assert [file.name for file in broken.files] == ["binlog.000001"]
    assert "binlog.000002 cannot be read" in broken.damaged[0].message


def test_a_replay_runs_no_other_file_than_was_planned(server: Server, tmp_path: Path) -> None:
    """While a restore waits to go on, a server may begin its binlogs anew: the names are the same."""
    archive, (first, *_) = archived(server)
    part = LogPart(first.incarnation, first.name, first.end, first.start, first.end, True, first.fingerprint)

    def fetch(part: LogPart) -> None:
        fetch_logs(archive, local(server), Replay(1, (part,), None), RelayLogs(tmp_path / "relay"), SILENT)

    for planned in (part, replace(part, fingerprint="")):
        fetch(planned)
        RelayLogs(tmp_path / "relay").remove()
    fetch(replace(part, description=first.digest))
    RelayLogs(tmp_path / "relay").remove()
    with pytest.raises(DamagedError, match="replaced after"):
        fetch(replace(part, description="0" * 64))
    with pytest.raises(DamagedError, match="replaced after"):
        fetch(replace(part, fingerprint="0" * 64))
