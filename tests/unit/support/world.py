"""A fake host without ZFS and without a server: snapshots in memory, recorded streams, a repository in a real folder.

Every change counts as a step, and the host can die before any step. After that nothing has an effect, as after kill -9.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from tests.unit.support.events import Recorder
from tests.unit.support.fake_sources import VOLUMES, FakeDisks, FakeServer
from tests.unit.support.manifests import stored_manifests
from tests.unit.support.simulated_zfs import SimulatedZfs, is_change
from tests.unit.support.streams import begin, end, write
from zsnapdb.base import run_context
from zsnapdb.base.domain_types import new_backup_id
from zsnapdb.base.errors import CommandError
from zsnapdb.config import settings as config
from zsnapdb.jobs.backup import run as job
from zsnapdb.jobs.backup import send as backup_send
from zsnapdb.jobs.backup.source_interface import SnapshotRequest
from zsnapdb.jobs.base import instance_snapshots
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.backup_chain import restore_chain
from zsnapdb.repository import crypto_keys
from zsnapdb.repository import writer_lease as leases
from zsnapdb.repository.backup_journal import JournalDisk
from zsnapdb.repository.backup_marks import unfinished
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.manifest import expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Store
from zsnapdb.store.local import LocalStore
from zsnapdb.stream.chunks import Codec
from zsnapdb.stream.download import download
from zsnapdb.stream.upload import UploadSettings
from zsnapdb.zfs import command, datasets, holds, libzfs, replaced_data, snapshots, version
from zsnapdb.zfs.snapshot_files import SnapshotNames

CHUNK = 4096
START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


class Died(BaseException):
    """The process was killed."""


def stream(name: str, to_guid: int, from_guid: int, salt: int = 0, kind: int = 2) -> bytes:
    """The recorded stream of a snapshot, from one GUID to another.

    With another salt it has the same length and another content from its middle on.
    """
    size = 3 * CHUNK if from_guid else 5 * CHUNK
    body = random.Random(f"{to_guid} {from_guid}").randbytes(size)
    if salt:
        body = body[: size // 2] + random.Random(f"{to_guid} {from_guid} {salt}").randbytes(size - size // 2)
    return begin(guid=to_guid, base=from_guid, name=name, kind=kind) + write(body, guid=to_guid) + end(guid=to_guid)


class WatchedStore:
    """The folder of the repository. Each change is a step, and tests can make single calls fail or lie."""

    def __init__(self, world: World, inner: Store) -> None:
        self.world, self.inner = world, inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*args: Any, **named: Any) -> Any:
            key = str(args[0]) if args else ""
            if name in ("put", "replace", "delete"):
                self.world.step(f"{name} {key}")
            self.world.alive()
            if self.world.on_call is not None:
                answer = self.world.on_call(name, key)
                if answer is not None:
                    return answer
            return method(*args, **named)

        return call


class WatchedDisk(JournalDisk):
    """The disk of the journals. Each change is a step, and it can fail or be full."""

    def __init__(self, world: World) -> None:
        self.world = world

    def append(self, out: BinaryIO, line: bytes) -> None:
        """Write the line, or a part of it if the host dies."""
        (kind,) = json.loads(line.partition(b" ")[2])
        try:
            self.world.step(f"journal {kind}")
        except Died:
            if self.world.steps and self.world.steps[-1] == f"journal {kind}":
                # The write of the line had started.
                out.write(b'0badc0de {"chunk": ["da')
                self.world.steps.append("torn")
            raise
        if self.world.journal_fails_at is not None:
            self.world.journal_fails_at -= 1
            if self.world.journal_fails_at < 0:
                raise OSError(28, "No space left on device")
        super().append(out, line)

    def remove(self, file: Path) -> None:
        self.world.step("journal removed")
        super().remove(file)


class World:
    """One host with one instance of two volumes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("store", "run"):
            (folder / name).mkdir()
        identity = crypto_keys.AgeIdentity.new()
        crypto_keys.write_secret(folder / "identity", identity.file())
        self.recipients: tuple[str, ...] = (identity.recipient,)
        self.local: Store = LocalStore(folder / "store")
        self.zfs = SimulatedZfs()
        self.snapshots, self.bookmarks = self.zfs.snapshots, self.zfs.bookmarks
        self.time = START
        self.steady: tuple[str, float] | None = None
        self.steps: list[str] = []
        self.die_at: int | None = None
        self.dead = False
        self.send_dies_at: int | None = None
        self.end_is_missing = False
        self.salt = 0
        self.unreadable: str | None = None
        """The backup whose snapshots have a bad block."""
        self.on_call: Callable[[str, str], Any] | None = None
        self.journal_fails_at: int | None = None
        self.reported: list[str] = []
        self.resume_within = "3d"
        self.run_id: Callable[[], str] = run_context.run_id
        self.source: type[FakeServer] = FakeServer
        self.mount = "0:30 1"
        """The mount id of the filesystems. Empty: not mounted."""
        self.removed: set[str] = set()
        """Backups that the test removed from the repository. `zsnapdb prune` removes their snapshots."""

    # Steps.

    def alive(self) -> None:
        if self.dead:
            raise Died

    def step(self, what: str) -> None:
        """Count a step before it has its effect."""
        self.alive()
        self.steps.append(what)
        if len(self.steps) == self.die_at:
            self.dead = True
            raise Died

    def rise(self) -> None:
        """Start the host again."""
        self.dead, self.die_at, self.steps = False, None, []

    # Fakes of ZFS, the server, the snapshot and the stream.

    def run(self, argv: list[str], *, timeout: float = 60.0, most_bytes: int = 0) -> str:
        """Run the zfs command. Each change is a step."""
        self.alive()
        if is_change(argv):
            self.step(" ".join(argv[1:]))
        return self.zfs.run(argv)

    def named(self, places: Collection[str]) -> dict[str, SnapshotNames] | None:
        """Return the names of the snapshots, as the kernel lists those of mounted filesystems."""
        self.alive()
        numbers: dict[str, dict[str, int]] = {place: {} for place in places}
        for snap in self.snapshots.values():
            place, _, short = snap.name.partition("@")
            if place in numbers:
                numbers[place][short] = snap.guid
        return {place: SnapshotNames(self.mount, own) for place, own in numbers.items()} if self.mount else None

    def snapshot(self, request: SnapshotRequest) -> None:
        """Create the snapshots of the request, in one transaction group."""
        self.step("snapshot")
        self.zfs.snapshot(request)

    @contextlib.contextmanager
    def open_source(self, instance: Instance) -> Iterator[FakeServer]:
        self.alive()
        yield self.source(self)

    def new_id(self, moment: datetime | None = None) -> str:
        self.time += timedelta(minutes=1)
        return new_backup_id(moment or self.time, self.zfs.guid)

    def send(self, name: str, base: str | None, flags: object = ()) -> _Send:
        self.alive()
        if self.unreadable and self.unreadable in name:
            raise CommandError("bad block")
        return _Send(self, name, self.zfs.snap(name).guid, self.zfs.snap(base).guid if base else 0)

    # Runs, and the checks after them.

    @property
    def instance(self) -> Instance:
        text = (
            f'[instance.main]\nsocket = "/x"\nvolumes = {{ data = "{VOLUMES["data"]}", parent = "{VOLUMES["parent"]}"'
            f' }}\nrepository = "r"\n[instance.main.chain]\nresume_within = "{self.resume_within}"\n[repository.r]\nurl'
            f' = "file://{self.folder / "store"}"\n[repository.r.encryption]\nrecipients = {list(self.recipients)!r}\n'
        ).replace("'", '"')
        host = Host(
            run=self.folder / "run",
            cache=self.folder / "cache",
            journals=self.folder / "journal",
            records=self.folder / "stored",
            now=lambda: self.time,
            steady=lambda: self.steady,
            id_at=lambda moment: self.new_id(moment if moment > self.time else None),
            run_id=lambda: self.run_id(),
            open_store=lambda settings, tell: (cast(Store, WatchedStore(self, self.local)), ""),
            journal_disk=WatchedDisk(self),
            # A dead run of this test belongs to this process. A real host would know that it has ended.
            has_ended=lambda holder: True,
        )
        return replace(Instance.of(config.parse(text, "test"), "main"), host=host)

    def backup(self, **options: bool) -> job.BackupResult:
        return job.backup(self.instance.with_events(Recorder(self.reported)), opener=self.open_source, **options)

    @property
    def repository(self) -> Repository:
        return Repository.open(self.local, "", Keyring(identity_file=self.folder / "identity"), instances=("main",))

    def ids(self) -> list[str]:
        return self.repository.backup_ids("main")

    def journals(self) -> list[str]:
        folder = self.folder / "journal" / "main"
        return sorted(os.listdir(folder)) if folder.exists() else []

    def content(self, backup_id: str) -> dict[str, bytes]:
        """Return the plain streams of a stored backup."""
        repository = self.repository
        backup = repository.manifest("main", backup_id)
        streams = {}
        for volume in backup.volumes:
            out = io.BytesIO()
            chunks = repository.chunks_of(backup, volume.role)
            ciphers = repository.ciphers(backup)
            download(
                chunks,
                volume.chunks,
                volume.codec,
                out,
                concurrency=2,
                name=str,
                on_bytes=lambda done: None,
                ciphers=ciphers,
                expected=expected_stream(volume, volume.features),
            )
            streams[volume.role] = out.getvalue()
        return streams

    def check_good(self) -> None:
        """Check that every listed backup can be restored: its chain is complete, and each stream is a sent one."""
        manifests = stored_manifests(self.repository)
        for backup in manifests:
            assert restore_chain(manifests, backup)
            streams = self.content(backup.backup_id)
            for volume in backup.volumes:
                expected = expected_stream(volume)
                possible = [
                    stream(expected.name, expected.to_guid, expected.from_guid, salt, expected.kind)
                    for salt in range(self.salt + 1)
                ]
                assert streams[volume.role] in possible

    def check_settled(self) -> None:
        """Check that interrupted backups left only orphaned chunks, and that every stored backup can be a base."""
        self.check_good()
        ids = self.ids()
        assert {snap.properties["zsnapdb:state"] for snap in self.snapshots.values()} <= {"stored"}
        assert {snap.properties["zsnapdb:backup"] for snap in self.snapshots.values()} <= set(ids) | self.removed
        assert not [snap.name for snap in self.snapshots.values() if snap.holds]
        assert {name.partition("#zsnapdb-")[2] for name in self.bookmarks} <= set(ids) | self.removed
        assert {f"{dataset}#zsnapdb-{ids[-1]}" for dataset in VOLUMES.values()} <= set(self.bookmarks)
        assert self.journals() == []
        assert unfinished(self.repository, "main", ids) == []
        assert leases.holder(self.repository, "main/writer") is None


class _Send:
    """A running `zfs send`."""

    def __init__(self, world: World, name: str, to_guid: int, from_guid: int) -> None:
        kind = 3 if issubclass(world.source, FakeDisks) else 2
        body = stream(name, to_guid, from_guid, world.salt, kind)
        self._died = world.send_dies_at is not None
        if self._died:
            body = body[: world.send_dies_at]
        if world.end_is_missing:
            body = body[:-312]
        self.pipe = io.BytesIO(body)

    def __enter__(self) -> _Send:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def finish(self) -> None:
        if self._died:
            raise CommandError("`zfs send` was killed")

    def raise_its_own_error(self) -> None:
        self.finish()


@contextlib.contextmanager
def made(folder: Path) -> Iterator[World]:
    """Yield a world in which backups run."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(folder)
        for module in (command, holds, snapshots, datasets, replaced_data):
            patch.setattr(module, "run", world.run)
        patch.setattr(libzfs, "load", lambda: None)
        patch.setattr(instance_snapshots, "snapshot_names", world.named)
        patch.setattr(version, "userland", lambda: "zfs-2.3.9")
        patch.setattr(version, "pool_guid", lambda pool: 1)
        patch.setattr(backup_send, "SendStream", world.send)
        patch.setattr(backup_send, "estimate", lambda name, base, flags: None)
        patch.setattr(Instance, "upload_settings", lambda instance: UploadSettings(CHUNK, Codec.ZSTD, 1, 1))
        yield world
