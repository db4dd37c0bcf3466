"""A repository over a store: what is a backup, reading manifests, committing one, chunks of a volume."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zsnapdb.errors import ConsistencyError, DamagedError, ExistsError, NotThere
from zsnapdb.repository import layout
from zsnapdb.repository.manifest import Manifest, decode
from zsnapdb.store.base import Store
from zsnapdb.stream.chunks import Body

FORMAT = 1


@dataclass(frozen=True)
class VolumeChunks:
    """The chunks of one volume of one backup, as the stream room sees them."""

    store: Store
    prefix: str
    repository_id: str
    instance: str
    backup_id: str
    role: str

    def key(self, index: int) -> str:
        """Return the chunk's key in the store."""
        return self.prefix + layout.chunk(self.instance, self.backup_id, self.role, index)

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to."""
        return "\n".join(("zsnapdb/1", self.repository_id, self.instance, self.backup_id, self.role, str(index), str(int(last)))).encode()

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk."""
        self.store.put(self.key(index), body, sha256=sha256)

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk; NotThere if it is missing."""
        return self.store.get(self.key(index))

    def give_up(self) -> None:
        """Let the store try nothing again."""
        self.store.give_up()


@dataclass(frozen=True)
class Catalogue:
    """The backups of an instance, oldest first, and what is wrong with those that cannot be read."""

    manifests: tuple[Manifest, ...]
    damaged: tuple[DamagedError, ...]


@dataclass(frozen=True)
class Repository:
    """An opened repository. `id` is what its marker object says."""

    store: Store
    prefix: str
    id: str

    @classmethod
    def open(cls, store: Store, prefix: str) -> Repository:
        """Return the repository; NotThere if there is none under the prefix (or no bucket), whatever else is unreachable raises."""
        store.check()
        try:
            body = store.get(prefix + layout.MARKER)
        except NotThere as error:
            raise NotThere(f"there is no repository yet: {prefix}{layout.MARKER} is missing", hint="the first `zsnapdb backup` makes it") from error
        try:
            marker = json.loads(body)
            version, identity = int(marker["format"]), str(marker["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{prefix}{layout.MARKER} cannot be read", hint="is this the prefix of a zsnapdb repository?") from error
        if version != FORMAT:
            raise DamagedError(f"the repository has format {version}, this zsnapdb reads {FORMAT}", hint="use the zsnapdb that wrote it, or a newer one")
        return cls(store, prefix, identity)

    @classmethod
    def open_or_create(cls, store: Store, prefix: str, new_id: str) -> Repository:
        """Return the repository, making its marker if the prefix has none."""
        try:
            return cls.open(store, prefix)
        except NotThere:
            store.check()
        body = json.dumps({"format": FORMAT, "id": new_id}, indent=1).encode()
        # Another first backup may be quicker; its marker is as good.
        with contextlib.suppress(ExistsError):
            store.put(prefix + layout.MARKER, body, only_if_absent=True)
        return cls.open(store, prefix)

    def chunks(self, instance: str, backup_id: str, role: str) -> VolumeChunks:
        """Return the chunk store of one volume of a backup."""
        return VolumeChunks(self.store, self.prefix, self.id, instance, backup_id, role)

    def backup_ids(self, instance: str) -> list[str]:
        """Return the ids of the instance's backups, oldest first."""
        found = []
        for item in self.store.list(self.prefix + layout.manifests(instance)):
            parsed = layout.parse_manifest(item.key[len(self.prefix) :])
            if parsed is not None and parsed[0] == instance:
                found.append(parsed[1])
        return sorted(found)

    def manifest(self, instance: str, backup_id: str) -> Manifest:
        """Return one backup's manifest; NotThere if there is no such backup; DamagedError if it is of another place."""
        key = layout.manifest(instance, backup_id)
        try:
            manifest = decode(self.store.get(self.prefix + key), key)
        except NotThere as error:
            raise NotThere(f"instance {instance} has no backup {backup_id}", hint="see `zsnapdb list`") from error
        if (manifest.instance, manifest.backup_id) != (instance, backup_id):
            raise DamagedError(
                f"manifest {key} is that of {manifest.instance} {manifest.backup_id}", hint="objects were renamed or copied by hand in the repository"
            )
        return manifest

    def catalogue(self, instance: str) -> Catalogue:
        """Return all backups of the instance. One damaged manifest does not hide the others; an unreachable store raises."""

        def read(backup_id: str) -> Manifest | DamagedError:
            try:
                return self.manifest(instance, backup_id)
            except DamagedError as error:
                return error

        with ThreadPoolExecutor(8, thread_name_prefix="manifest") as pool:
            found = list(pool.map(read, self.backup_ids(instance)))
        return Catalogue(tuple(item for item in found if isinstance(item, Manifest)), tuple(item for item in found if isinstance(item, DamagedError)))

    def commit(self, manifest: Manifest) -> None:
        """Make the backup exist: its manifest is written, never over another, and read back the same."""
        key = layout.manifest(manifest.instance, manifest.backup_id)
        # A request that is repeated after its answer was lost finds its own object; the comparison tells.
        with contextlib.suppress(ExistsError):
            self.store.put(self.prefix + key, manifest.encode(), only_if_absent=True)
        if self.manifest(manifest.instance, manifest.backup_id) != manifest:
            raise ConsistencyError(
                f"manifest {key} was read back different from what was written", hint="another run has the same id, or the store cannot be trusted"
            )
