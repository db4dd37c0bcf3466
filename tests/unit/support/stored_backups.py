"""Repositories with real backups of synthetic streams, for tests of jobs on repositories."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from tests.unit.support.manifests import after_the_examples
from tests.unit.support.manifests import manifest as example
from tests.unit.support.streams import renamed
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.repository.crypto_keys import SigningKey, write_secret
from zsnapdb.repository.manifest import Manifest, VolumePart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import Body, DeletionPolicy, ObjectHold, Retrieval, Store, StoredObject, Version
from zsnapdb.store.layers import open_store
from zsnapdb.stream.chunks import Codec, seal, stream_hash

ROLES = ("data", "parent")
SLICE = 2048
Wrapped = TypeVar("Wrapped", bound=Store)


def stream(to_guid: int, from_guid: int | None, seed: int, writes: int = 9) -> bytes:
    """Return a send stream: BEGIN, some WRITEs, END."""
    noise = random.Random(seed)
    begin = struct.pack("<IIQQQIIQQ", 0, 0, 0x2F5BACBAC, 1 | (4 << 2), 0, 2, 0, to_guid, from_guid or 0).ljust(
        312, b"\0"
    )
    body = b""
    for _ in range(writes):
        head = bytearray(312)
        struct.pack_into("<I", head, 0, 3)
        struct.pack_into("<QQ", head, 32, 512, to_guid)
        body += bytes(head) + noise.randbytes(512)
    end = bytearray(312)
    struct.pack_into("<I", end, 0, 5)
    struct.pack_into("<Q", end, 40, to_guid)
    return begin + body + bytes(end)


def volume(
    repository: Repository, backup_id: str, role: str, guid: int, from_guid: int | None, plain: bytes
) -> VolumePart:
    """Store the chunks of a stream. Return its part of the manifest."""
    chunks = repository.chunks("main", backup_id, role)
    slices = [plain[at : at + SLICE] for at in range(0, len(plain), SLICE)]
    rows = []
    for index, plain_slice in enumerate(slices, 1):
        body, chunk = seal(
            memoryview(plain_slice), Codec.ZSTD, 1, None, chunks.associated(index, last=index == len(slices))
        )
        chunks.put_chunk(index, body, chunk.stored_sha256)
        rows.append(chunk)
    part: VolumePart = example().volumes[0]
    return part.model_copy(
        update={
            "role": role,
            "dataset": f"tank/{role}",
            "snapshot": f"zsnapdb-{backup_id}",
            "guid": guid,
            "from_guid": from_guid,
            "plain_size": len(plain),
            "sha256": stream_hash(tuple(rows)),
            "chunks": tuple(rows),
        }
    )


def store_backup(
    repository: Repository,
    backup_id: str,
    number: int,
    base: int | None,
    made: Callable[[int], bytes] | None = None,
    place: Mapping[str, int] | None = None,
) -> Manifest:
    """Store backup `number`, which determines its GUIDs: an increment of backup `base`, or a full backup.

    `place`: its pool, transaction group and sequence number.
    """
    volumes = []
    for offset, role in enumerate(ROLES):
        guid, from_guid = guid_of(number, offset), guid_of(base, offset) if base is not None else None
        plain = made(guid) if made else stream(guid, from_guid, guid)
        plain = renamed(plain, f"tank/{role}@zsnapdb-{backup_id}")
        volumes.append(volume(repository, backup_id, role, guid, from_guid, plain))
    manifest = example(backup_id).model_copy(
        update={"repository_id": repository.id, "volumes": tuple(volumes), **(place or {"createtxg": number})}
    )
    repository.commit(manifest)
    return manifest


def guid_of(number: int, offset: int) -> int:
    return (number + 1) * 10 + offset


def id_of(number: int, now: datetime, count: int, step: timedelta) -> str:
    return f"{now - step * (count - number):%Y%m%dT%H%M%SZ}-{number:04x}"


CONFIGURATION = """
[instance.main]
socket = "/nonexistent"
volumes = {{ data = "tank/data", parent = "tank/parent" }}
repository = "here"
[instance.main.keep]
{keep}
[repository.here]
url = "{url}"
region = "us-east-1"
[repository.there]
url = "file://{folder}-there"
"""


@dataclass
class Site:
    """A configured instance and its repository, with backups a day apart."""

    folder: Path
    keep: str = "last = 3"
    url: str = ""
    ahead: timedelta = timedelta()
    """How far the host's clock is ahead of the tests' clock."""
    is_after_examples: bool = False
    """Whether the host's clock is after the ids of the examples, even if this machine's clock is not."""
    wraps: dict[str, Callable[[Store], Store]] = field(default_factory=dict)
    """The wrapper of each repository's store, applied when the repository is opened."""
    signing_key: Path | None = None
    signers: tuple[str, ...] = ()

    @property
    def host(self) -> Host:
        beside = self.folder.parent
        return Host(
            run=beside / "run",
            cache=beside / "cache",
            records=beside / "stored",
            now=lambda: (after_the_examples() if self.is_after_examples else datetime.now(UTC)) + self.ahead,
            open_store=self._open_store,
        )

    def _open_store(self, settings: RepositorySettings, tell: Callable[[str], None] | None) -> tuple[Store, str]:
        store, prefix = open_store(settings, tell)
        wrap = self.wraps.get("there" if settings.url.endswith("-there") else "here")
        return (wrap(store) if wrap else store), prefix

    def later(self, **time: float) -> None:
        """Set the host's clock ahead. Without arguments, set it right."""
        self.ahead = timedelta(**time)

    @contextlib.contextmanager
    def opening(self, wrap: Callable[[Store], Wrapped], repository: str = "here") -> Iterator[list[Wrapped]]:
        """Wrap the repository's store during the block. Yield the list of wrapped stores so far."""
        made: list[Wrapped] = []

        def wrapped(store: Store) -> Store:
            made.append(wrap(store))
            return made[-1]

        self.wraps[repository] = wrapped
        try:
            yield made
        finally:
            del self.wraps[repository]

    def text(self) -> str:
        return CONFIGURATION.format(folder=self.folder, keep=self.keep, url=self.url or f"file://{self.folder}")

    def instance(self, repository: str | None = None) -> Instance:
        instance = replace(Instance.at(parse(self.text(), "test"), "main", repository), host=self.host)
        keys = {"signing_key_file": self.signing_key, "signers": self.signers}
        encryption = instance.repository.encryption.model_copy(update=keys)
        return replace(instance, repository=instance.repository.model_copy(update={"encryption": encryption}))

    def begin_to_sign(self) -> str:
        """Give this host a signing key. Return its public part."""
        key = SigningKey.new()
        self.signing_key = self.folder.parent / "signing"
        write_secret(self.signing_key, key.file())
        return key.public

    def fill(
        self,
        bases: Sequence[int | None],
        made: Callable[[int], bytes] | None = None,
        step: timedelta = timedelta(days=1),
    ) -> list[str]:
        """Store a backup per element: an increment of the backup with that number, or a full backup. Return the ids.

        `made` creates the stream for a GUID in place of `stream`.
        """
        repository = self.instance().open_or_create_repository()
        now = datetime.now(UTC)
        names = [id_of(number, now, len(bases), step) for number in range(len(bases))]
        for number, base in enumerate(bases):
            self.record(store_backup(repository, names[number], number, base, made))
        return names

    def record(self, manifest: Manifest) -> None:
        """Record on the host that it stored the backup."""
        instance, repository = self.instance(), self.instance().open_repository()
        host_backup_record.note_stored(instance, repository, *repository.digested_manifest("main", manifest.backup_id))

    def objects(self, under: str = "") -> list[str]:
        """Return the keys of all objects below `under`, of zsnapdb or not, without the repository's prefix."""
        store, prefix = open_store(self.instance().repository)
        return [item.key.removeprefix(prefix) for item in store.list(prefix + under)]


class Killed(BaseException):
    """A simulated death of the process: no code catches it or cleans up."""


class DyingStore:
    """A store whose process dies before or after the n-th change.

    After that the store does nothing.
    """

    def __init__(self, inner: Store, before: Callable[[str, str], None] = lambda what, key: None) -> None:
        self.inner, self.before = inner, before
        self.changes: list[tuple[str, str]] = []
        self.die_at: int | None = None
        self.die_after = False
        self.dead = False

    def _alive(self) -> None:
        if self.dead:
            raise Killed

    def _change(self, what: str, key: str, do: Callable[[], None]) -> None:
        self._alive()
        if key.endswith(".lock"):
            do()
            return
        self.before(what, key)
        self.changes.append((what, key))
        dying = self.die_at is not None and len(self.changes) == self.die_at
        if dying and not self.die_after:
            self.dead = True
            raise Killed
        do()
        if dying:
            self.dead = True
            raise Killed

    def check(self) -> None:
        self._alive()
        self.inner.check()

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._change("put", key, lambda: self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256))

    def get(self, key: str) -> bytes:
        self._alive()
        return self.inner.get(key)

    def read_into(self, key: str, target: memoryview) -> int:
        self._alive()
        return self.inner.read_into(key, target)

    def read_version(self, key: str) -> Version:
        self._alive()
        return self.inner.read_version(key)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self._change("replace", key, lambda: self.inner.replace(key, body, tag=tag))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._alive()
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._change("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def folders(self, prefix: str) -> Iterator[str]:
        self._alive()
        return self.inner.folders(prefix)

    def hold(self, key: str) -> ObjectHold | None:
        return self.inner.hold(key)

    def extend_lock(self, key: str, until: datetime) -> None:
        self._change("lock", key, lambda: self.inner.extend_lock(key, until))

    def retrieval(self, key: str) -> Retrieval:
        return self.inner.retrieval(key)

    def retrieve(self, key: str, tier: str, days: int) -> None:
        self.inner.retrieve(key, tier, days)

    def afterlife(self) -> DeletionPolicy:
        return self.inner.afterlife()

    def give_up(self) -> None:
        self.inner.give_up()


def dies(moment: int, *, after: bool) -> Callable[[Store], DyingStore]:
    """Return a function that wraps a store so that it dies before or after that change."""

    def wrap(store: Store) -> DyingStore:
        dying = DyingStore(store)
        dying.die_at, dying.die_after = moment, after
        return dying

    return wrap
