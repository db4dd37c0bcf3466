"""If another server archives under the same name, what this server archives later stays in the newest history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID
from zsnapdb.base.errors import ConsistencyError, UnreachableError
from zsnapdb.jobs.binlog.other_writers import OtherWriters
from zsnapdb.jobs.record.record_file import HostRecord
from zsnapdb.planning.repository.host_backup_record import RecordedBackup
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile

OTHER = "aaaaaaaa-0000-0000-0000-0000000000ff"


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherWriters, "pause", 0.0)


@pytest.fixture(params=["another server", "a copy of the server"])
def intruder(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Server:
    """A server that archives to the same store after this server. It is a new server, or a copy with the same UUID."""
    is_copy = request.param == "a copy of the server"
    server.commit(3)
    state = server.saved()
    server.commit()
    server.look()
    (tmp_path / "intruder").mkdir()
    made = Server(tmp_path / "intruder", str(UUID) if is_copy else OTHER)
    made.store = server.store
    made.set_back(state)
    return made


def back_up(server: Server) -> None:
    """Record a backup on the host of the server."""
    archiver = server.archiver()
    record = HostRecord.of(archiver._instance, archiver.archive.repository)
    assert record is not None
    number = record.change_backups(lambda known: known.with_next_number(())).sequence
    backup = RecordedBackup(backup_id=f"20261130T120000Z-{number:04x}", volumes=(), writer=server.uuid, sequence=number)
    record.change_backups(lambda known: known.with_stored(backup))


def test_overtaken_running_archiver_begins_a_new_history(server: Server, intruder: Server) -> None:
    archiver = server.archiver()
    archiver.look()
    intruder.commit(2)
    intruder.look()
    assert archiver.look().new_incarnation is None
    server.commit(2)
    other = server.load().incarnations[-1]
    begun = archiver.look()
    reason = f"server {other.server_uuid} (server_id 1) archived binlogs in history {other.id} after this one"
    assert (begun.new_incarnation, begun.gaps) == (reason, ())
    assert any(reason in text for text in server.reported)
    archive = server.check(whole=False)
    newest = archive.incarnations[-1]
    assert (len(archive.incarnations), newest.overtakes, archive.state.grown) == (3, other.id, ())
    assert [(end.incarnation, end.transactions > 0) for end in newest.ends][-1] == (other.id, True)
    server.commit()
    assert (archiver.look().new_incarnation, server.look().new_incarnation) == (None, None)


def test_overtaken_archiver_that_starts_begins_a_new_history(server: Server, intruder: Server) -> None:
    intruder.commit(2)
    intruder.look()
    server.commit(2)
    assert "after this one" in str(server.look().new_incarnation) or intruder.uuid == server.uuid
    assert server.load().incarnations[-1].id == server.load().files[-1].incarnation
    server.check(whole=False)


def test_archiver_leaves_a_history_that_a_copy_continues(server: Server, tmp_path: Path) -> None:
    """The copy was made when all binlogs were archived, so its archiver continues the history of the server."""
    archiver = server.archiver()
    server.commit(3)
    archiver.look()
    (tmp_path / "copy").mkdir()
    copy = Server(tmp_path / "copy")
    copy.store = server.store
    copy.set_back(server.saved())
    copy.commit()
    assert copy.look().new_incarnation is None
    server.commit(2)
    begun = archiver.look().new_incarnation
    assert begun is not None
    assert "a copy of server" in begun
    server.check()


def test_own_description_with_a_lost_answer_is_not_that_of_a_copy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver = server.archiver()
    server.commit(3)
    archiver.look()
    server.rotate()
    server.commit()
    store = archiver.archive.commit

    def lose(file: ArchivedFile) -> None:
        store(file)
        raise UnreachableError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(BinlogArchive, "commit", lambda _, file: lose(file))
        with pytest.raises(UnreachableError):
            archiver.look()
    with pytest.raises(ConsistencyError):
        archiver.look()
    assert server.look().new_incarnation is None
    assert (len(server.load().incarnations), server.reported) == (1, [])


def test_two_archivers_begin_at_most_one_history_per_backup(server: Server, intruder: Server) -> None:
    running = [(one, one.archiver()) for one in (server, intruder)]

    def write() -> int:
        for _ in range(4):
            for one, archiver in running:
                one.commit()
                archiver.look()
        return len(server.load().incarnations)

    first = write()
    assert first <= 4
    assert write() == first
    assert any("run `zsnapdb backup main`" in text for one in (server, intruder) for text in one.reported)
    assert server.load().state.grown
    for number in (1, 2):
        back_up(server)
        assert write() <= first + number
    server.look()
    assert server.load().damaged == ()


def test_history_grown_behind_a_new_one_is_followed_after_a_restart(
    server: Server, intruder: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archiver of an earlier version continued its history. Then the newest history is the intruder's."""
    archiver = server.archiver()
    intruder.commit(2)
    intruder.look()
    server.commit(5)
    with monkeypatch.context() as patched:
        patched.setattr(archiver._others, "reason_to_begin", lambda *_: None)
        archiver.look()
    first, other = server.load().incarnations
    assert server.load().state.grown == ((other.id, first.id),)
    intruder.commit()
    begun = intruder.look().new_incarnation
    assert begun is not None
    assert first.id in begun
    assert server.load().incarnations[-1].overtakes == first.id
