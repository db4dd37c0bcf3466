"""A server with simulated binlogs in a folder, and their archive in another folder."""

from __future__ import annotations

import copy
import struct
from pathlib import Path

from tests.unit.support.binlog_file import ROTATE, UUID, File
from tests.unit.support.events import Recorder
from tests.unit.support.manifests import after_the_examples
from zsnapdb.base.domain_types import Flavour
from zsnapdb.config.repository import RepositorySettings, StreamSettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.archiver import Archiver
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_archive_contents import Archive
from zsnapdb.repository.crypto_keys import AgeIdentity
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Store
from zsnapdb.store.local import LocalStore

IDENTITY = AgeIdentity.new()
CHUNK = 1 << 20


class Server:
    """The binlogs of a server in one folder, and their archive in another folder."""

    def __init__(
        self, folder: Path, uuid: str = str(UUID), *, has_gtids: bool = True, is_encrypted: bool = True
    ) -> None:
        self.folder, self.uuid = folder, uuid
        self.has_gtids, self.is_encrypted = has_gtids, is_encrypted
        self.files: dict[str, File] = {}
        self.number = 0
        self.executed = 0
        self.clock = 1_700_000_000
        (folder / "store").mkdir(exist_ok=True)
        (folder / "identity").write_bytes(IDENTITY.file())
        (folder / "identity").chmod(0o600)
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
            self.clock += 1
            if not self.has_gtids:
                self.newest.anonymous(committed=self.clock * 1_000_000)
                continue
            self.executed += 1
            self.newest.transaction(self.executed, committed=self.clock * 1_000_000, size=size)
        self.write()

    def reset(self) -> None:
        """Remove all binlogs, and start again with number 1 and without GTIDs, like RESET MASTER."""
        self.remove(*self.files)
        self.number = self.executed = 0
        self.rotate()

    def saved(self) -> tuple[dict[str, File], int, int]:
        """Return the server's state, for `set_back`."""
        return copy.deepcopy(self.files), self.number, self.executed

    def set_back(self, state: tuple[dict[str, File], int, int]) -> None:
        """Give the server an earlier state and start it, as after a rollback of its dataset. The clock continues."""
        self.remove(*self.files)
        files, self.number, self.executed = state
        self.files = copy.deepcopy(files)
        self.rotate()

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
        keyring = Keyring((IDENTITY.recipient,), self.folder / "identity") if self.is_encrypted else Keyring()
        return BinlogArchive(Repository.open_or_create(self.store, "", "0123", keyring), "main")

    def archiver(self, store: Store | None = None, *, among: BinlogArchive | None = None) -> Archiver:
        """Return an archiver. It writes to the archive `among` if given, else to the store."""
        archive = among or self.archive()
        if store is not None:
            archive = BinlogArchive(Repository(store, "", "0123", archive.repository.keyring), "main")
        instance = Instance(
            "main",
            InstanceSettings(socket=Path("/s"), repository="r"),
            RepositorySettings(url="file:///x", stream=StreamSettings(chunk_size=CHUNK)),
            Recorder(self.reported),
            Host(records=self.folder / "stored", now=after_the_examples),
        )
        return Archiver(
            instance,
            archive,
            BinlogSource(Flavour.MYSQL, self.uuid, 1, self.folder / "binlog.index", self.folder, self.folder),
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
