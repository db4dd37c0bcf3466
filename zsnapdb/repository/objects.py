"""The objects of a repository by typed keys: nothing above this knows the store, or the prefix in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from zsnapdb.errors import ExistsError, NotThere
from zsnapdb.repository.layout import K, Key, KeyPrefix
from zsnapdb.store.base import Afterlife, Body, ObjectHold, Store, Version


@dataclass(frozen=True, slots=True)
class ListedObject(Generic[K]):
    """An object that is listed: its key, its size in bytes, and when the store says it was written (None: not known)."""

    key: K
    size: int
    modified: datetime | None


@dataclass(frozen=True)
class RepositoryObjects:
    """The objects below one prefix of one store. Every method raises RepositoryError if the store cannot be asked."""

    _store: Store
    _prefix: str

    def check(self) -> None:
        """Prove that the store can be reached and listed; NotThere if the bucket or folder is missing."""
        self._store.check()

    def place(self, key: Key) -> str:
        """Return the key as the store has it, for messages."""
        return self._prefix + key

    def get(self, key: Key) -> bytes:
        """Return the object; NotThere if there is none."""
        return self._store.get(self._prefix + key)

    def get_into(self, key: Key, target: memoryview) -> int:
        """Write the object to `target`, as much as fits, and return its whole size in bytes; NotThere if there is none."""
        return self._store.read_into(self._prefix + key, target)

    def exists(self, key: Key) -> bool:
        """Whether the object can be had. It is asked for itself: a listing may lag."""
        try:
            self.get(key)
        except NotThere:
            return False
        return True

    def put(self, key: Key, body: Body) -> None:
        """Store the object, durably, where there is none; ExistsError if there is one."""
        self._store.put(self._prefix + key, body, only_if_absent=True)

    def put_same(self, key: Key, body: bytes) -> bool:
        """Store the object where there is none, and return whether what is read back is exactly it."""
        # A request that is repeated after its answer was lost meets its own object; the comparison tells.
        with contextlib.suppress(ExistsError):
            self.put(key, body)
        return self.get(key) == body

    def overwrite(self, key: Key, body: Body, *, sha256: str | None = None) -> None:
        """Store the object, durably, in place of any other; `sha256` is the body's, where the caller has it."""
        self._store.put(self._prefix + key, body, sha256=sha256)

    def read_version(self, key: Key) -> Version:
        """Return the object with its tag; NotThere if there is none."""
        return self._store.read_version(self._prefix + key)

    def replace(self, key: Key, body: Body, *, tag: str) -> None:
        """Store the object in place of the version with the tag; ChangedError if it is another, or gone."""
        self._store.replace(self._prefix + key, body, tag=tag)

    def delete(self, key: Key) -> None:
        """Remove the object; one that is not there counts as removed."""
        self._store.delete(self._prefix + key)

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove the objects. RepositoryError if one was refused; others may be gone."""
        self._store.delete_many([self._prefix + key for key in keys])

    def list(self, prefix: KeyPrefix[K]) -> Iterator[ListedObject[K]]:
        """Yield the objects below the prefix, by key; foreign ones are passed over."""
        return (listed for listed in self.list_all(prefix) if listed is not None)

    def list_all(self, prefix: KeyPrefix[K]) -> Iterator[ListedObject[K] | None]:
        """Yield everything below the prefix, by key; None for an object whose key is not of our layout."""
        skipped = len(self._prefix)
        for item in self._store.list(self._prefix + prefix.path):
            key = prefix.parse(item.key[skipped:])
            yield ListedObject(key, item.size, item.modified) if key is not None else None

    def sizes(self, prefix: KeyPrefix[K]) -> dict[K, int]:
        """Return the size in bytes of each object below the prefix, by key."""
        return {listed.key: listed.size for listed in self.list(prefix)}

    def folders(self, prefix: KeyPrefix[K]) -> Iterator[str]:
        """Yield, in order, each name that follows the prefix in a key and is followed by a slash."""
        return self._store.folders(self._prefix + prefix.path)

    def hold(self, key: Key) -> ObjectHold | None:
        """Return what keeps the store from removing the object for good; None if nothing does."""
        return self._store.hold(self._prefix + key)

    def afterlife(self) -> Afterlife:
        """Return what becomes of objects that are removed."""
        return self._store.afterlife()

    def give_up(self) -> None:
        """Wait for nothing any more: calls that only wait for another attempt raise soon."""
        self._store.give_up()
