"""Binlogs that do not continue the archived ones begin a new incarnation, by their contents and GTIDs."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID, File
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource

OTHER = "aaaaaaaa-0000-0000-0000-0000000000ff"


def test_after_a_reset_a_new_incarnation_is_begun_with_all_files(server: Server) -> None:
    server.commit(3)
    server.rotate()
    server.commit(3)
    server.look()
    server.remove(*server.files)
    server.number, server.executed = 0, 0
    for _ in range(3):
        server.rotate()
        server.commit(4)
    result = server.look()
    assert result.new_incarnation is not None
    archive = server.check()
    assert [len(archive.of(i.id)) for i in archive.incarnations] == [2, 3]


def test_a_server_that_lost_what_was_archived_begins_a_new_incarnation_at_that_file(server: Server) -> None:
    server.commit(3)
    server.rotate()
    server.commit(3)
    kept = bytes(server.newest.data)
    server.commit(3)
    server.look()
    server.newest.data = bytearray(kept)
    server.executed -= 3
    server.write()
    assert server.look().new_incarnation is not None
    archive = server.check(whole=False)
    assert [[f.name for f in archive.of(i.id)] for i in archive.incarnations] == [
        ["binlog.000001", "binlog.000002"],
        ["binlog.000002"],
    ]
    assert server.look().new_incarnation is None


def test_other_transactions_in_a_file_of_the_same_name_and_beginning_are_another_incarnation(server: Server) -> None:
    server.commit(2)
    kept = bytes(server.newest.data)
    server.commit(3)
    server.look()
    server.newest.data = bytearray(kept)
    server.executed, server.clock = server.executed - 3, server.clock + 1000
    server.commit(6)
    assert server.look().new_incarnation is not None
    server.check()


def test_a_change_in_what_is_already_archived_is_found_when_the_file_is_rotated(server: Server) -> None:
    archiver = server.archiver()
    server.commit(2)
    archiver.look()
    server.commit(2)
    archiver.look()
    changed = File(when=server.newest.when).add(35, bytes(8)).transaction(1, committed=77)
    server.newest.data[: len(changed.data)] = changed.data
    server.rotate()
    with pytest.raises(ConsistencyError, match="no longer contains"):
        archiver.look()
    assert archiver.look().new_incarnation is not None
    server.check()


def test_a_server_that_takes_over_goes_on_by_its_gtids(server: Server, tmp_path: Path) -> None:
    for _ in range(3):
        server.commit(5)
        server.rotate()
    server.look()
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other", OTHER)
    other.store = server.store
    for _ in range(4):
        other.commit(5)
        other.rotate()
    result = other.look()
    assert "takes over" in str(result.new_incarnation)
    assert result.gaps == ()
    archive = other.load()
    assert [f.name for f in archive.of(archive.incarnations[-1].id)] == ["binlog.000004", "binlog.000005"]
    assert server.look().new_incarnation is None


def test_a_server_that_this_host_archives_again_after_another_one_begins_a_new_incarnation(server: Server) -> None:
    """As after a rewind that was undone by hand: nothing of the other server is newer than this server."""
    server.commit(3)
    server.rotate()
    server.commit(2)
    server.look()
    state, server.uuid = server.saved(), OTHER
    server.set_back(state)
    server.commit(4)
    assert "takes over" in str(server.look().new_incarnation)
    server.uuid = str(UUID)
    server.set_back(state)
    server.commit(2)
    begun = server.look()
    assert ("in production again" in str(begun.new_incarnation), begun.gaps) == (True, ())
    archive = server.check(whole=False)
    assert [file.name for file in archive.of(archive.incarnations[-1].id)] == ["binlog.000002", "binlog.000003"]
    server.commit(2)
    assert (server.look().new_incarnation, len(server.load().incarnations)) == (None, 3)


def _answered(source: BinlogSource | None) -> BinlogSource | None:
    return source


def test_while_files_are_replaced_and_the_server_does_not_say_who_it_is_no_incarnation_begins(server: Server) -> None:
    """A restored server gets another identity. Until it runs, its files would be archived under the old one."""
    server.commit(2)
    server.rotate()
    server.look()
    state = server.saved()
    server.commit(5)
    archiver = server.archiver()
    archiver.look()
    server.set_back(state)
    other = replace(archiver._source, server_uuid=OTHER)
    for answer in (None, other):
        result = archiver.look(functools.partial(_answered, answer))
        assert (result.new_incarnation, result.rotated, result.transactions, result.gaps) == (None, (), 0, ())
    assert len(server.load().incarnations) == 1
    assert archiver.look(lambda: archiver._source).new_incarnation is not None
    assert len(server.load().incarnations) == 2
