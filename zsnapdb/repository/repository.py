"""A repository in a store: how to open it, read and commit manifests, and access the chunks of volumes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from zsnapdb.base.domain_types import is_backup_id
from zsnapdb.base.errors import ConfigError, ConsistencyError, DamagedError, ExistsError, NotFound
from zsnapdb.planning.backup_chain import OTHER_ADDRESS_HINT
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import ChunkKey, Key
from zsnapdb.repository.manifest import ChunkTable, Manifest, decode
from zsnapdb.repository.marker import Marker
from zsnapdb.repository.objects import ListedObject, RepositoryObjects
from zsnapdb.store.base import Store, most_bytes
from zsnapdb.stream.chunks import Body, Chunk
from zsnapdb.stream.crypto import ChunkCipher

_NO_KEYS = Keyring()


@dataclass(frozen=True)
class ListedChunks:
    """The listed chunks of a volume, compared with its manifest.

    `unfit` maps the numbers (from 1) of missing chunks, and of chunks with a wrong size, to descriptions, in order.
    `archived` contains the chunks in an archive class.
    """

    unfit: Mapping[int, str]
    archived: tuple[ListedObject[ChunkKey], ...]


@dataclass(frozen=True)
class VolumeChunks:
    """The chunks of one volume of one backup, as `zsnapdb.stream` uses them.

    `repository_id` is the id in the backup's manifest.
    """

    objects: RepositoryObjects
    repository_id: str
    instance: str
    backup_id: str
    role: str

    def key(self, index: int) -> ChunkKey:
        """Return the key of the chunk. `index` counts from 1."""
        return layout.chunk(self.instance, self.backup_id, self.role, index)

    def compare(self, chunks: Sequence[Chunk]) -> ListedChunks:
        """List the stored chunks, and compare them with the chunks of the manifest.

        The listing is not kept in memory, because a backup can have hundreds of thousands of chunks.
        """
        found, unfit, archived = bytearray(len(chunks)), dict[int, str](), []
        for one in self.objects.list(layout.chunks(self.instance, self.backup_id, self.role)):
            index = int(one.key.field("index"))
            if not 1 <= index <= len(chunks):
                continue
            found[index - 1] = 1
            wanted = chunks[index - 1].stored_size
            if one.size != wanted:
                unfit[index] = f"chunk {one.key} has {one.size} bytes, the manifest says {wanted}"
            if one.archive_class:
                archived.append(one)
        unfit |= {
            index: f"chunk {self.key(index)} is missing" for index, is_there in enumerate(found, 1) if not is_there
        }
        return ListedChunks(dict(sorted(unfit.items())), tuple(archived))

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return the associated data of an encrypted chunk. The data names the object that the chunk belongs to."""
        return "\n".join(
            ("zsnapdb/1", self.repository_id, self.instance, self.backup_id, self.role, str(index), str(int(last)))
        ).encode()

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk durably. `sha256` is the body's hash, in hexadecimal."""
        self.objects.overwrite(self.key(index), body, sha256=sha256)

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk. Raises NotFound if the chunk is missing."""
        return self.objects.get(self.key(index))

    def read_chunk(self, index: int, target: memoryview) -> int:
        """Write as much of the stored chunk to `target` as fits. Return its full size in bytes.

        Raises NotFound if the chunk is missing.
        """
        return self.objects.get_into(self.key(index), target)

    def give_up(self) -> None:
        """Stop retrying. A call that waits for its next attempt raises an error instead."""
        self.objects.give_up()


_LOOKED_AT = 10
"""How many of the last recorded backups may prove the id of a repository."""
_REWRITTEN = "the id was read from a backup of this host; run `zsnapdb init` after the removal of the marker"


@dataclass(frozen=True)
class Repository(RepositoryObjects):
    """An opened repository: its objects by typed keys, its id and its keys.

    `id` is the id in the marker. If the marker is missing, or contradicts the backups of this host, `note` reports
    this, and `id` is the id in the manifests.
    """

    id: str
    keyring: Keyring = _NO_KEYS
    note: str = ""
    recipients: tuple[str, ...] = ()
    """The recipients of the repository's backups, from the marker or, without a marker, from a manifest."""

    @classmethod
    def open(
        cls, store: Store, prefix: str, keyring: Keyring | None = None, *, instances: tuple[str, ...] = ()
    ) -> Repository:
        """Return the repository in the store.

        A repository without a marker is opened if one of `instances` has a readable manifest in it; `note` reports
        this. A repository whose marker is unreadable or has another id is also opened if one of the last backups that
        this host recorded still exists. Raises NotFound if the repository has neither a marker nor a manifest, or if
        the bucket is missing. Raises RepositoryError if the store cannot be reached.
        """
        return cls.among(RepositoryObjects(store, prefix), keyring, instances=instances)

    @classmethod
    def among(
        cls, objects: RepositoryObjects, keyring: Keyring | None = None, *, instances: tuple[str, ...] = ()
    ) -> Repository:
        """Return the repository that consists of the given objects. Errors and notes are the same as in `open`."""
        unknown = cls(objects._store, objects._prefix, "", keyring or Keyring())
        objects.check()
        place = objects.place(layout.MARKER)
        try:
            marker = Marker.read(objects)
        except DamagedError:
            if (newest := cls._recorded_manifest(unknown, instances, "")) is None:
                raise
            return cls._without_marker(unknown, newest, f"{place} is unreadable; {_REWRITTEN}")
        except NotFound as error:
            newest = cls._newest_manifest(unknown, instances)
            if newest is None:
                sought = f"{objects.place(layout.MARKER)} is missing"
                if instances:
                    sought += f", and there is no backup of {', '.join(instances[:3])}"
                raise NotFound(f"there is no repository: {sought}", hint=OTHER_ADDRESS_HINT) from error
            missing = (
                f"{place} is missing; the id was read from a manifest; run `zsnapdb init` to write the marker again"
            )
            return cls._without_marker(unknown, newest, missing)
        if (newest := cls._recorded_manifest(unknown, instances, marker.id)) is not None:
            return cls._without_marker(unknown, newest, f"{place} names repository {marker.id}; {_REWRITTEN}")
        return replace(unknown, id=marker.id, recipients=marker.recipients)

    @staticmethod
    def _without_marker(unknown: Repository, manifest: Manifest, note: str) -> Repository:
        recipients = manifest.keys[0].recipients if manifest.keys else ()
        return replace(unknown, id=manifest.repository_id, note=note, recipients=recipients)

    @staticmethod
    def _recorded_manifest(unknown: Repository, instances: tuple[str, ...], marker_id: str) -> Manifest | None:
        """Return the manifest of a backup that this host recorded at this address under an id other than the marker's.

        The result is None if no such backup exists, which means that the repository was replaced on purpose.
        """
        own = unknown.keyring.own
        recorded = own.stored_elsewhere(marker_id) if own is not None else {}
        for repository_id, backup_ids in recorded.items():
            for instance, backup_id in product(instances, reversed(backup_ids[-_LOOKED_AT:])):
                with contextlib.suppress(DamagedError, NotFound):
                    manifest, digest = unknown.digested_manifest(instance, backup_id)
                    is_own = bool(unknown.keyring.trusted) or (own is not None and own.knows(digest))
                    if is_own and manifest.repository_id == repository_id:
                        return manifest
        return None

    @staticmethod
    def _newest_manifest(unknown: Repository, instances: tuple[str, ...]) -> Manifest | None:
        """Return the newest readable manifest that this host stored. The first instance that has one is used.

        If this host stored no readable manifest, return the newest readable manifest of any host; None if there are no
        manifests.

        Raises: DamagedError if no manifest is readable.
        """
        damaged: DamagedError | None = None
        own = unknown.keyring.own
        for instance in instances:
            newest: Manifest | None = None
            for backup_id in reversed(unknown.backup_ids(instance)):
                try:
                    manifest, digest = unknown.digested_manifest(instance, backup_id)
                except DamagedError as error:
                    damaged = error
                    continue
                if own is None or unknown.keyring.trusted or own.knows(digest):
                    return manifest
                newest = newest or manifest
            if newest is not None:
                return newest
        if damaged is not None:
            raise damaged
        return None

    @classmethod
    def open_or_create(
        cls,
        store: Store,
        prefix: str,
        new_id: str,
        keyring: Keyring | None = None,
        *,
        instances: tuple[str, ...] = (),
        check_new: Callable[[NotFound], None] = lambda _: None,
    ) -> Repository:
        """Return the repository for writing.

        If the marker is missing, write it with the id in the manifests, or with `new_id` if there are no manifests.
        In the latter case `check_new` is called first, and may raise an error.

        Raises: ConfigError if this host would store unencrypted backups next to encrypted ones, or cannot sign as
        configured.
        """
        used_keyring = keyring or Keyring()
        try:
            repository = cls.open(store, prefix, used_keyring, instances=instances)
        except NotFound as error:
            check_new(error)
            store.check()
            repository = cls(store, prefix, new_id, used_keyring, "new")
        repository.check_writable()
        if not repository.note:
            return repository
        # If another first backup has written its marker in the meantime, that marker is used.
        with contextlib.suppress(ExistsError):
            Marker(id=repository.id, recipients=used_keyring.recipients).write(repository)
        return cls.open(store, prefix, used_keyring, instances=instances)

    def check_writable(self) -> None:
        """Raise ConfigError if this host must not write to the repository.

        A host must not write if it would store unencrypted backups next to encrypted ones, or cannot sign as
        configured.
        """
        self.keyring.check_signing()
        if self.recipients and not self.keyring.is_encrypting:
            raise ConfigError(
                "the repository's backups are encrypted, and no recipients are configured here",
                hint=f'set recipients under encryption, such as recipients = ["{self.recipients[0]}"]',
            )

    def chunks(self, instance: str, backup_id: str, role: str) -> VolumeChunks:
        """Return the chunks of one volume of a backup in progress."""
        return VolumeChunks(self, self.id, instance, backup_id, role)

    def chunks_of(self, manifest: Manifest, role: str) -> VolumeChunks:
        """Return the chunks of one volume of a stored backup."""
        return VolumeChunks(self, manifest.repository_id, manifest.instance, manifest.backup_id, role)

    def ciphers(self, manifest: Manifest) -> Mapping[str, ChunkCipher]:
        """Return the ciphers of the backup's chunks, keyed by key id.

        Raises ConfigError if no identity opens the backup's data keys.
        """
        opened = self.keyring.open_keys(manifest.keys, f"backup {manifest.backup_id}")
        return {key_id: ChunkCipher(key, key_id) for key_id, key in opened.items()}

    def backup_ids(self, instance: str) -> list[str]:
        """Return the ids of the instance's backups, sorted by id. To order backups by age, use `catalogue`."""
        return sorted(listed.key.backup_id for listed in self.list(layout.manifests(instance)))

    def manifest(self, instance: str, backup_id: str) -> Manifest:
        """Return one backup's manifest. This raises the same errors as `digested_manifest`."""
        return self.digested_manifest(instance, backup_id)[0]

    def digested_manifest(
        self, instance: str, backup_id: str, kind: type[ChunkTable] = ChunkTable
    ) -> tuple[Manifest, str]:
        """Return one backup's manifest with chunk tables of type `kind`, and the SHA-256 of its stored line.

        Raises:
            NotFound: the backup does not exist.
            DamagedError: the manifest is unreadable, belongs to another backup, or has no signature of a configured
            signer.
        """
        absent = NotFound(f"instance {instance} has no backup {backup_id}", hint="see `zsnapdb list`")
        if not is_backup_id(backup_id):
            raise absent
        key = layout.manifest(instance, backup_id)
        try:
            document = self.keyring.opened(self.get(key), f"manifest {key}")
        except NotFound as error:
            raise absent from error
        manifest = decode(document.view, key, kind)
        if (manifest.instance, manifest.backup_id) != (instance, backup_id):
            raise DamagedError(
                f"manifest {key} belongs to backup {manifest.backup_id} of instance {manifest.instance}",
                hint="objects were renamed or copied by hand in the repository",
            )
        if self.id and manifest.repository_id != self.id:
            raise DamagedError(
                f"manifest {key} belongs to repository {manifest.repository_id}, this is repository {self.id}",
                hint="objects were copied by hand from another repository; copy backups with `zsnapdb copy`",
            )
        key_ids = (key_id for volume in manifest.volumes for key_id in volume.table.key_ids)
        self.keyring.check_encrypted(key_ids, f"manifest {key}")
        return manifest, document.digest

    def verified(self, key: Key) -> bytes:
        """Return the line of the document that is stored under the key.

        Raises: NotFound: the document does not exist. DamagedError: the document has no signature of a trusted key.
        """
        return self.keyring.verified(self.get(key), key)

    def believed(self, key: Key) -> bytes:
        """Return the document's line, with the checks of `verified`.

        Raises: UntrustedRecord in the same cases as `verified`, and if this host's records show that another writer
        stored the document.
        """
        return self.keyring.known(self.get(key), key)

    def commit(self, manifest: Manifest) -> str:
        """Store the manifest and read it back.

        A different manifest is never overwritten. Once the manifest is stored, the backup exists.

        Return the SHA-256 of the stored line.

        Raises: ConsistencyError if the repository then contains another manifest.
        """
        key = layout.manifest(manifest.instance, manifest.backup_id)
        body = self.keyring.signed(manifest.encode())
        if len(body) > most_bytes(key):
            raise ConfigError(
                f"manifest {key} would have {len(body)} bytes, and no host reads more than {most_bytes(key)}",
                hint="raise stream.chunk_size of the repository, so that the backup has fewer chunks",
            )
        # If the answer to a request was lost, the repeated request finds the object of the first request. The
        # comparison below detects this.
        with contextlib.suppress(ExistsError):
            self.put_alone(key, body)
        stored, digest = self.digested_manifest(manifest.instance, manifest.backup_id)
        if stored != manifest:
            raise ConsistencyError(
                f"manifest {key} was read back different from what was written",
                hint="another run has the same id, or the store cannot be trusted",
            )
        return digest


def confirm(chunks: VolumeChunks, stored: Sequence[Chunk]) -> None:
    """Check that the store has every chunk, each with the recorded size.

    Listings of some stores are outdated, so the check reads each chunk that the listing lacks.

    Raises: ConsistencyError with the name of the first missing or incomplete chunk.
    """
    for index in chunks.compare(stored).unfit:
        key, chunk = chunks.key(index), stored[index - 1]
        try:
            body = chunks.get_chunk(index)
        except NotFound:
            state = "is missing now"
        else:
            if len(body) == chunk.stored_size and hashlib.sha256(body).hexdigest() == chunk.stored_sha256:
                continue
            state = f"now has {len(body)} other bytes"
        raise ConsistencyError(
            f"the store accepted {key} with {chunk.stored_size} bytes, but the object {state}",
            hint="the backup was not completed; the store loses objects, or another program writes below this prefix",
        )
