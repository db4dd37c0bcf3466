"""The archiver with files made event by event: however it is killed, the archive is right and reports its gaps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.binlog_file import ROTATE, UUID, File
from tests.unit.support.events import Recorder
from zsnapdb.config import InstanceSettings, RepositorySettings, StreamSettings
from zsnapdb.errors import ConsistencyError
from zsnapdb.jobs.binlog.archiver import Archiver, Round
from zsnapdb.jobs.binlog.files import BinlogSource
from zsnapdb.jobs.instance import Instance
from zsnapdb.model import Flavour
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_contents import Archive
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.keys import AgeIdentity
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Store
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.chunks import Body

IDENTITY = AgeIdentity.new()
OTHER = "aaaaaaaa-0000-0000-0000-0000000000ff"
CHUNK = 1 << 20


class Killed(BaseException):
    """Stands for a kill -9, which no code handles."""


class Failing:
    """A store whose writer is killed before or after its Nth write."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self.store, self.left, self.after, self.lock = store, at, after, Lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def _step(self, write: Callable[[], None]) -> None:
        with self.lock:
            self.left -= 1
            is_last = self.left <= 0
        if is_last and not self.after:
            raise Killed
        write()
        if is_last:
            raise Killed

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._step(lambda: self.store.put(key, body, only_if_absent=only_if_absent, sha256=sha256))

    def delete(self, key: str) -> None:
        self._step(lambda: self.store.delete(key))


class Server:
    """The binlogs of a server in one folder, and their archive in another folder."""

    def __init__(self, folder: Path, uuid: str = str(UUID)) -> None:
        self.folder, self.uuid = folder, uuid
        self.files: dict[str, File] = {}
        self.number = 0
        self.executed = 0
        self.clock = 1_700_000_000
        (folder / "store").mkdir(exist_ok=True)
        (folder / "identity").write_bytes(IDENTITY.file())
        self.store: Store = LocalStore(folder / "store")
        self.reported: list[str] = []
        self.rotate()

    @property
    def newest(self) -> File:
        return self.files[f"binlog.{self.number:06d}"]

    def rotate(self) -> None:
        if self.files:
            self.newest.add(ROTATE, struct.pack("<Q", 4) + b"binlog")
            self.newest.data[21] &= ~1
        self.number += 1
        self.clock += 10
        self.files[f"binlog.{self.number:06d}"] = (
            File(when=self.clock).previous(self.executed) if self.executed else File(when=self.clock).add(35, bytes(8))
        )
        self.write()

    def commit(self, count: int = 1, size: int = 80) -> None:
        for _ in range(count):
            self.executed += 1
            self.clock += 1
            self.newest.transaction(self.executed, committed=self.clock * 1_000_000, size=size)
        self.write()

    def write(self) -> None:
        for name, file in self.files.items():
            path = self.folder / name
            if not path.exists() or path.read_bytes() != bytes(file.data):
                path.write_bytes(bytes(file.data))
        (self.folder / "binlog.index").write_text("".join(f"./{name}\n" for name in self.files))

    def remove(self, *names: str) -> None:
        for name in names:
            del self.files[name]
            (self.folder / name).unlink()
        self.write()

    def archive(self) -> BinlogArchive:
        keyring = Keyring((IDENTITY.recipient,), self.folder / "identity")
        return BinlogArchive(Repository.open_or_create(self.store, "", "0123", keyring), "main")

    def archiver(self, store: Store | None = None) -> Archiver:
        archive = self.archive()
        if store is not None:
            archive = BinlogArchive(Repository(store, "", "0123", archive.repository.keyring), "main")
        instance = Instance(
            "main",
            InstanceSettings(socket=Path("/s"), repository="r"),
            RepositorySettings(url="file:///x", stream=StreamSettings(chunk_size=CHUNK)),
            Recorder(self.reported),
        )
        return Archiver(
            instance,
            archive,
            BinlogSource(Flavour.MYSQL, self.uuid, 1, self.folder / "binlog.index", self.folder),
        )

    def look(self) -> Round:
        return self.archiver().look()

    def load(self) -> Archive:
        return self.archive().load()

    def check(self, whole: bool = True) -> Archive:
        """Check that every archived file of the newest incarnation is a prefix of the server's file, with its GTIDs.

        `whole`: all binlogs are archived completely.
        """
        archive = self.load()
        files = archive.of(archive.incarnations[-1].id) if archive.incarnations else ()
        assert archive.damaged == ()
        for file in files:
            if file.name in self.files:
                target = self.folder / "fetched"
                target.unlink(missing_ok=True)
                self.archive().fetch(file, target)
                data = bytearray(self.files[file.name].data)
                data[21] &= ~1
                assert target.read_bytes() == bytes(data[: file.end])
                assert not file.is_rotated or file.end == len(data)
        if whole:
            assert [file.name for file in files][-len(self.files) :] == list(self.files)
            assert all(file.is_rotated for file in files[:-1] if file.name in self.files)
            assert str(files[-1].reached) == (
                f"{UUID}:1-{self.executed}" if self.executed > 1 else f"{UUID}:1" if self.executed else ""
            )
        return archive


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_rotated_files_are_archived_whole_and_the_active_one_up_to_its_last_transaction(server: Server) -> None:
    server.commit(3)
    server.rotate()
    server.commit(2)
    server.newest.gtid(6).query(b"BEGIN")
    server.write()
    result = server.look()
    assert (result.rotated, result.transactions, result.gaps, result.begun is not None) == (
        ("binlog.000001",),
        5,
        (),
        True,
    )
    files = server.check().files
    assert [(f.is_rotated, f.span.transactions, str(f.gtids), f.first_commit) for f in files] == [
        (True, 3, f"{UUID}:1-3", (1_700_000_011) * 1_000_000),
        (False, 2, f"{UUID}:4-5", (1_700_000_024) * 1_000_000),
    ]


def test_each_round_adds_a_segment_and_rotation_replaces_the_segments_by_the_whole_file(server: Server) -> None:
    archiver = server.archiver()
    for _ in range(4):
        server.commit(2)
        assert archiver.look().transactions == 2
        assert archiver.look().transactions == 0
    assert len(server.check().files[0].segments) == 4
    server.rotate()
    assert archiver.look().rotated == ("binlog.000001",)
    server.check()
    assert not [item for item in server.store.list("main/binlogs/") if "segments/binlog.000001/" in item.key]


def test_many_segments_become_one(server: Server) -> None:
    archiver = server.archiver()
    for _ in range(70):
        server.commit()
        archiver.look()
    assert len(server.check().files[0].segments) == 2 + 70 - 64
    assert len([item for item in server.store.list("main/binlogs/") if "segments/" in item.key]) == 2 + 70 - 64


def test_a_transaction_longer_than_a_chunk_is_cut_and_counts_only_when_whole(server: Server) -> None:
    archiver = server.archiver()
    server.commit(2)
    archiver.look()
    server.commit(1, size=int(2.5 * CHUNK))
    server.commit(2)
    assert archiver.look().transactions == 3
    (file,) = server.check().files
    assert max(s.end - s.start for s in file.segments) <= CHUNK
    server.rotate()
    server.look()
    server.check()


def test_it_goes_on_where_an_earlier_run_ended(server: Server) -> None:
    server.commit(3)
    server.look()
    server.commit(3)
    result = server.look()
    assert (result.begun, result.transactions, result.gaps) == (None, 3, ())
    assert len(server.check().incarnations) == 1


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_write_the_next_run_completes_the_archive(tmp_path: Path, after: bool) -> None:
    at = 0
    while True:
        at += 1
        (tmp_path / str(at)).mkdir()
        server = Server(tmp_path / str(at))
        server.commit(2)
        server.look()
        server.commit(1, size=int(1.5 * CHUNK))
        try:
            archiver = server.archiver(cast(Store, Failing(server.store, at, after=after)))
            archiver.look()
            server.rotate()
            server.commit(2)
            server.rotate()
            server.commit(1)
            archiver.look()
        except Killed:
            server.check(whole=False)
            if len(server.files) == 1:
                server.rotate()
            assert server.look().begun is None
            server.check()
            continue
        server.check()
        break
    assert at > 12


def test_a_binlog_purged_before_it_was_archived_is_a_gap_and_archiving_goes_on(server: Server) -> None:
    server.commit(3)
    server.look()
    for _ in range(3):
        server.rotate()
        server.commit(2)
    server.remove("binlog.000001", "binlog.000002")
    result = server.look()
    assert (result.begun, len(result.gaps)) == (None, 1)
    assert f"{UUID}:4-5" in result.gaps[0]
    files = server.check(whole=False).files
    assert [(f.name, f.gap is not None) for f in files] == [
        ("binlog.000001", False),
        ("binlog.000003", True),
        ("binlog.000004", False),
    ]
    assert server.look().gaps == ()


def test_a_purged_binlog_that_was_archived_to_its_last_transaction_is_no_gap(server: Server) -> None:
    server.commit(3)
    server.look()
    server.rotate()
    server.commit(2)
    server.remove("binlog.000001")
    assert server.look().gaps == ()
    server.check(whole=False)


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
    assert result.begun is not None
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
    assert server.look().begun is not None
    archive = server.check(whole=False)
    assert [[f.name for f in archive.of(i.id)] for i in archive.incarnations] == [
        ["binlog.000001", "binlog.000002"],
        ["binlog.000002"],
    ]
    assert server.look().begun is None


def test_other_transactions_in_a_file_of_the_same_name_and_beginning_are_another_incarnation(server: Server) -> None:
    server.commit(2)
    kept = bytes(server.newest.data)
    server.commit(3)
    server.look()
    server.newest.data = bytearray(kept)
    server.executed, server.clock = server.executed - 3, server.clock + 1000
    server.commit(6)
    assert server.look().begun is not None
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
    assert archiver.look().begun is not None
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
    assert "takes over" in str(result.begun)
    assert result.gaps == ()
    archive = other.load()
    assert [f.name for f in archive.of(archive.incarnations[-1].id)] == ["binlog.000004", "binlog.000005"]
    assert server.look().begun is None


def test_an_encrypted_binlog_is_left_out_and_said(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.files["binlog.000002"].data[:4] = b"\xfdbin"
    server.write()
    result = server.look()
    assert result.blocked is None
    assert ["encrypted" in problem for problem in result.problems] == [True]
    assert ["encrypted" in gap for gap in result.gaps] == [True]
    assert [f.name for f in server.load().files] == ["binlog.000001", "binlog.000003"]
    server.newest.data[:4] = b"\xfdbin"
    server.write()
    assert "encrypted" in str(server.archiver().look().blocked)


def test_a_damaged_binlog_is_left_out_and_said(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.files["binlog.000001"].data[10] ^= 1
    server.write()
    result = server.look()
    assert ["format" in problem or "checksum" in problem for problem in result.problems] == [True]
    assert [f.name for f in server.load().files] == ["binlog.000002"]


def test_a_listed_binlog_that_is_not_there_is_a_gap(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.rotate()
    (server.folder / "binlog.000002").unlink()
    result = server.look()
    assert ["the file is missing" in gap for gap in result.gaps] == [True]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["commit", "big", "rotate", "look", "restart"]), max_size=25))
def test_whatever_order_things_happen_in_the_archive_is_the_servers_binlogs(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    server = Server(tmp_path_factory.mktemp("server"))
    archiver = server.archiver()
    for step in steps:
        if step == "commit":
            server.commit()
        elif step == "big":
            server.commit(1, size=CHUNK)
        elif step == "rotate":
            server.rotate()
        elif step == "look":
            archiver.look()
        else:
            archiver = server.archiver()
    assert archiver.look().gaps == ()
    server.check()
