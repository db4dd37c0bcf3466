"""A repository over a store: what is a backup, reading manifests, committing one, chunks of a volume."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from zsnapdb.errors import ConfigError, ConsistencyError, DamagedError, ExistsError, NotThere
from zsnapdb.model import is_backup_id
from zsnapdb.repository import layout
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import ChunkKey
from zsnapdb.repository.manifest import Manifest, decode
from zsnapdb.repository.marker import FORMAT, Marker
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.store.base import Store
from zsnapdb.stream.chunks import Body
from zsnapdb.stream.crypto import ChunkCipher

_NO_KEYS = Keyring()


@dataclass(frozen=True)
class VolumeChunks:
    """The chunks of one volume of one backup, as the stream room sees them.

    `repository_id` is that of the backup's manifest.
    """

    objects: RepositoryObjects
    repository_id: str
    instance: str
    backup_id: str
    role: str

    def key(self, index: int) -> ChunkKey:
        """Return the key of the chunk; `index` counts from 1."""
        return layout.chunk(self.instance, self.backup_id, self.role, index)

    def sizes(self) -> dict[ChunkKey, int]:
        """Return the size in bytes of each chunk that is listed."""
        return self.objects.sizes(layout.chunks(self.instance, self.backup_id, self.role))

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to."""
        return "\n".join(
            ("zsnapdb/1", self.repository_id, self.instance, self.backup_id, self.role, str(index), str(int(last)))
        ).encode()

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk."""
        self.objects.overwrite(self.key(index), body, sha256=sha256)

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk; NotThere if it is missing."""
        return self.objects.get(self.key(index))

    def read_chunk(self, index: int, target: memoryview) -> int:
        """Write the stored chunk to `target` and return its whole size; NotThere if it is missing."""
        return self.objects.get_into(self.key(index), target)

    def give_up(self) -> None:
        """Let the store try nothing again."""
        self.objects.give_up()


@dataclass(frozen=True)
class Catalogue:
    """The backups of an instance, oldest first, and what is wrong with those that cannot be read."""

    manifests: tuple[Manifest, ...]
    damaged: tuple[DamagedError, ...]


@dataclass(frozen=True)
class Repository(RepositoryObjects):
    """An opened repository: its objects by typed keys, and what is known of it as a whole.

    `id` is what its marker says, or, where `note` says that the marker is lost, what its manifests say.
    """

    id: str
    keyring: Keyring = _NO_KEYS
    note: str = ""
    recipients: tuple[str, ...] = ()
    """The public keys its backups were encrypted to, as far as the marker or the newest manifest says."""

    @classmethod
    def open(
        cls, store: Store, prefix: str, keyring: Keyring | None = None, *, instances: tuple[str, ...] = ()
    ) -> Repository:
        """Return the repository.

        Without its marker it is opened all the same if one of `instances` has a readable manifest there; `note` says
        so. NotThere if there is neither (or no bucket); whatever else is unreachable raises.
        """
        return cls.among(RepositoryObjects(store, prefix), keyring, instances=instances)

    @classmethod
    def among(
        cls, objects: RepositoryObjects, keyring: Keyring | None = None, *, instances: tuple[str, ...] = ()
    ) -> Repository:
        """Return the repository that consists of these objects, as `open` does."""
        unknown = cls(objects._store, objects._prefix, "", keyring or Keyring())
        objects.check()
        try:
            marker = Marker.read(objects)
            return replace(unknown, id=marker.id, recipients=marker.recipients)
        except NotThere as error:
            newest = cls._newest_manifest(unknown, instances)
            if newest is None:
                raise NotThere(
                    f"there is no repository yet: {objects.place(layout.MARKER)} is missing",
                    hint="`zsnapdb init`, or the first `zsnapdb backup`, makes it",
                ) from error
        note = (
            f"{objects.place(layout.MARKER)} is missing; the repository is known from its manifests, `zsnapdb init`"
            " writes it again"
        )
        recipients = newest.keys[0].recipients if newest.keys else ()
        return replace(unknown, id=newest.repository_id, note=note, recipients=recipients)

    @staticmethod
    def _newest_manifest(unknown: Repository, instances: tuple[str, ...]) -> Manifest | None:
        """Return the newest readable manifest of the first instance that has one.

        DamagedError if there are manifests and none can be read.
        """
        damaged: DamagedError | None = None
        for instance in instances:
            for backup_id in reversed(unknown.backup_ids(instance)):
                try:
                    return unknown.manifest(instance, backup_id)
                except DamagedError as error:
                    damaged = error
        if damaged is not None:
            raise damaged
        return None

    @classmethod
    def open_or_create(
        cls, store: Store, prefix: str, new_id: str, keyring: Keyring | None = None, *, instances: tuple[str, ...] = ()
    ) -> Repository:
        """Return the repository to write to, its marker written if it was missing: with `new_id` only if there is no backup yet.

        ConfigError if this host would store in the clear what others encrypt, or could not sign as it must.
        """
        known = keyring or Keyring()
        try:
            found = cls.open(store, prefix, known, instances=instances)
        except NotThere:
            store.check()
            found = cls(store, prefix, new_id, known, "new")
        found.check_writable()
        if not found.note:
            return found
        # Another first backup may be quicker; its marker is as good.
        with contextlib.suppress(ExistsError):
            Marker(FORMAT, found.id, known.recipients).write(found)
        return cls.open(store, prefix, known)

    def check_writable(self) -> None:
        """Raise ConfigError if this host would store in the clear what others encrypt, or could not sign as it must."""
        self.keyring.check_signing()
        if self.recipients and not self.keyring.is_encrypting:
            raise ConfigError(
                "the repository's backups are encrypted, and no recipients are configured here",
                hint=f'set recipients under encryption, such as recipients = ["{self.recipients[0]}"]',
            )

    def chunks(self, instance: str, backup_id: str, role: str) -> VolumeChunks:
        """Return where the chunks of one volume of a backup that is being written go."""
        return VolumeChunks(self, self.id, instance, backup_id, role)

    def chunks_of(self, manifest: Manifest, role: str) -> VolumeChunks:
        """Return the chunks of one volume of a stored backup."""
        return VolumeChunks(self, manifest.repository_id, manifest.instance, manifest.backup_id, role)

    def ciphers(self, manifest: Manifest) -> Mapping[str, ChunkCipher]:
        """Return what its chunks decrypt with, by key id. ConfigError without an identity that opens its keys."""
        opened = self.keyring.open_keys(manifest.keys, f"backup {manifest.backup_id}")
        return {key_id: ChunkCipher(key, key_id) for key_id, key in opened.items()}

    def backup_ids(self, instance: str) -> list[str]:
        """Return the ids of the instance's backups, oldest first."""
        return sorted(listed.key.backup_id for listed in self.list(layout.manifests(instance)))

    def manifest(self, instance: str, backup_id: str) -> Manifest:
        """Return one backup's manifest; NotThere if there is no such backup.

        DamagedError if it is of another place, or not signed by one of the configured signers.
        """
        absent = NotThere(f"instance {instance} has no backup {backup_id}", hint="see `zsnapdb list`")
        if not is_backup_id(backup_id):
            raise absent
        key = layout.manifest(instance, backup_id)
        try:
            manifest = decode(self.keyring.verified(self.get(key), key), key)
        except NotThere as error:
            raise absent from error
        if (manifest.instance, manifest.backup_id) != (instance, backup_id):
            raise DamagedError(
                f"manifest {key} is that of {manifest.instance} {manifest.backup_id}",
                hint="objects were renamed or copied by hand in the repository",
            )
        return manifest

    def catalogue(self, instance: str) -> Catalogue:
        """Return all backups of the instance.

        One damaged manifest does not hide the others; an unreachable store raises.
        """

        def read(backup_id: str) -> Manifest | DamagedError:
            try:
                return self.manifest(instance, backup_id)
            except DamagedError as error:
                return error

        with ThreadPoolExecutor(8, thread_name_prefix="manifest") as pool:
            found = list(pool.map(read, self.backup_ids(instance)))
        return Catalogue(
            tuple(item for item in found if isinstance(item, Manifest)),
            tuple(item for item in found if isinstance(item, DamagedError)),
        )

    def commit(self, manifest: Manifest) -> None:
        """Make the backup exist: its manifest is written, never over another, and read back the same."""
        key = layout.manifest(manifest.instance, manifest.backup_id)
        # A request that is repeated after its answer was lost finds its own object; the comparison tells.
        with contextlib.suppress(ExistsError):
            self.put(key, self.keyring.signed(manifest.encode()))
        if self.manifest(manifest.instance, manifest.backup_id) != manifest:
            raise ConsistencyError(
                f"manifest {key} was read back different from what was written",
                hint="another run has the same id, or the store cannot be trusted",
            )
