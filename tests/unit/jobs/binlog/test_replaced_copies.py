"""The owner of the bucket replaces an archived binlog: it is found, and the server's own file stays."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import purge
from zsnapdb.jobs.binlog.purge import _Archived
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, KnownHistory, LocalFiles
from zsnapdb.jobs.host.binlog_spans import archived_damage, content_damage
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.jobs.repository import prune_facts
from zsnapdb.planning.binlog.purge import BinlogDecision
from zsnapdb.repository.binlog_descriptions import ArchivedFile
from zsnapdb.stream.chunks import Codec, seal, stream_hash

NAME = "binlog.000001"


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Server:
    """A server with a binlog that is rotated and archived, and the next one."""
    server = Server(tmp_path, is_encrypted=request.param)
    server.commit(5, size=3000)
    server.rotate()
    server.commit()
    server.look()
    return server


def instance_of(server: Server) -> Instance:
    host = Host(records=server.folder / "stored")
    settings = InstanceSettings(socket=Path("/s"), repository="r")
    return Instance("main", settings, RepositorySettings(url="file:///x"), host=host)


def archived(server: Server) -> _Archived:
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, server.folder / "binlog.index", server.folder, server.folder)
    local = LocalFiles(source)
    local.list()
    files = {file.name: file for file in server.load().files if file.is_rotated}
    return _Archived(server.archive(), files, local)


def replaced(server: Server, plain: bytes | None = None) -> ArchivedFile:
    """Replace the archived binlog by zeros, or other bytes, in the clear, and its description by one that fits."""
    archive = server.archive()
    file = archived(server).files[NAME]
    chunks = []
    for index, before in enumerate(file.chunks, 1):
        body, chunk = seal(memoryview(plain or bytes(before.plain_size)), Codec.ZSTD, 1, None, b"")
        archive.put_chunk(file.incarnation, NAME, file.attempt, index, body)
        chunks.append(chunk)
    update = {"chunks": tuple(chunks), "sha256": stream_hash(tuple(chunks)), "keys": (), "codec": Codec.ZSTD}
    forged = file.model_copy(update=update)
    archive.repository.overwrite(archive.file_key(file), forged.encode() + b"\n")
    return forged


def test_archived_binlog_as_it_was_written_is_whole_and_may_go(server: Server) -> None:
    there = archived(server)
    assert archived_damage(there.archive, there.files[NAME]) == ()
    assert there.is_believed(instance_of(server), NAME)
    purge._compare(instance_of(server), there, [NAME])


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_purge_misses_what_this_host_stored_in_its_own_history_alone(server: Server, tmp_path: Path) -> None:
    """Another host archives binlogs of the same names in the same repository."""
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other", "aaaaaaaa-0000-0000-0000-0000000000ff", is_encrypted=False)
    other.store, second = server.store, "binlog.000002"
    for _ in range(2):
        other.commit(20)
        other.rotate()
    server.rotate()
    for host in (server, other):
        host.look()
    archive, repository = server.load(), server.archive().repository
    own, foreign = (KnownHistory(one, archive.of(one.id), None) for one in archive.incarnations)
    assert second in {file.name for file in foreign.files if file.is_rotated}
    for history in (own, foreign, replace(foreign, files=())):
        purge._refuse_replaced(instance_of(server), repository, history, [NAME, second])
    with pytest.raises(DamagedError, match=f"description of {second} that this host stored"):
        purge._refuse_replaced(instance_of(server), repository, replace(own, files=own.files[:1]), [NAME, second])


@pytest.mark.parametrize("server", [False], indirect=True)
def test_zeros_with_a_rewritten_description_are_damage(server: Server) -> None:
    forged = replaced(server)
    there = archived(server)
    assert there.files[NAME] == forged
    assert archived_damage(there.archive, forged)
    assert not there.is_believed(instance_of(server), NAME)


@pytest.mark.parametrize("server", [False], indirect=True)
def test_purge_compares_with_the_bytes_of_the_server(server: Server) -> None:
    replaced(server)
    there = archived(server)
    with pytest.raises(DamagedError, match="does not have the bytes of the server's file"):
        purge._compare(instance_of(server), there, [NAME])
    with pytest.raises(DamagedError, match=r"the archived copy of binlog\.000001 is damaged"):
        purge._read(instance_of(server), there, [NAME])


@pytest.mark.parametrize("server", [False], indirect=True)
def test_description_with_right_hashes_over_other_stored_bytes_is_read_before_a_purge(server: Server) -> None:
    there = archived(server)
    file = there.files[NAME]
    garbage = b"garbage"
    digest = hashlib.sha256(garbage).hexdigest()
    lied = file.chunks[0]._replace(stored_size=len(garbage), stored_sha256=digest)
    forged = file.model_copy(update={"chunks": (lied, *file.chunks[1:])})
    archive = there.archive
    archive.put_chunk(file.incarnation, NAME, file.attempt, 1, garbage)
    archive.repository.overwrite(archive.file_key(file), forged.encode() + b"\n")
    there = archived(server)
    purge._compare(instance_of(server), there, [NAME])
    assert purge._unread(instance_of(server), there, [NAME]) == (NAME,)
    with pytest.raises(DamagedError, match="is damaged"):
        purge._read(instance_of(server), there, [NAME])


@pytest.mark.parametrize("what", ["transactions", "gtids"])
def test_content_of_another_binlog_is_damage(server: Server, what: str) -> None:
    file = archived(server).files[NAME]
    update = {"transactions": 7} if what == "transactions" else {"gtids": f"{server.uuid}:1-9"}
    lying = file.model_copy(update={"span": file.span.model_copy(update=update)})
    with (server.folder / NAME).open("rb") as opened:
        assert content_damage(opened, file) == ()
        assert content_damage(opened, lying)


@pytest.mark.parametrize("server", [False], indirect=True)
def test_prune_leaves_binlogs_whose_descriptions_were_rewritten(server: Server) -> None:
    instance, repository = instance_of(server), server.archive().repository
    before = archived(server).files[NAME]
    assert own_archived_binlogs.known_binlogs(instance, repository, [before])
    old = before.model_copy(update={"head": before.head.model_copy(update={"created": 1})})
    assert not own_archived_binlogs.known_binlogs(instance, repository, [old])
    decided = prune_facts._of_known(
        BinlogDecision(0, old.incarnation, NAME, True, "older than every backup that stays"), frozenset()
    )
    assert (decided.remove, decided.reason.partition(":")[0]) == (False, "foreign")


def test_archive_of_an_earlier_version_is_recorded_once(server: Server) -> None:
    (file,) = (server.folder / "stored").glob("main/*/binlogs.json")
    file.unlink()
    there = archived(server)
    assert not there.is_believed(instance_of(server), NAME)
    server.archiver()
    assert there.is_believed(instance_of(server), NAME)
    forged = replace(there, files={NAME: there.files[NAME].model_copy(update={"sha256": "0" * 64})})
    assert not forged.is_believed(instance_of(server), NAME)
