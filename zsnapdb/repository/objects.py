"""Access to the objects of a repository by typed keys, and the base class of all stored documents."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base.errors import DamagedError, ExistsError, NotFound
from zsnapdb.base.patterns import first_problem
from zsnapdb.repository.layout import K, Key, KeyPrefix
from zsnapdb.store.base import Body, DeletionPolicy, ObjectHold, Retrieval, Store, Version


@dataclass(frozen=True, slots=True)
class ListedObject(Generic[K]):
    """An object in a listing: its key, its size in bytes, and the time of its last write by the store's clock.

    `modified` is None if the store does not report it. `tag` changes with every version of the object, or is "" if
    unknown. `archive_class` is the same as in `StoredObject`.
    """

    key: K
    size: int
    modified: datetime | None
    tag: str = ""
    archive_class: str = ""

    @property
    def version(self) -> str:
        """The identity of this version of the object; "" if the store reports nothing that distinguishes versions."""
        told = self.tag or (str(self.modified) if self.modified is not None else "")
        return f"{self.size} {told}" if told else ""


@dataclass(frozen=True)
class RepositoryObjects:
    """The objects below one prefix of one store. Every method raises RepositoryError if the store is unreachable."""

    _store: Store
    _prefix: str

    def through(self, layer: Callable[[Store], Store]) -> Self:
        """Return the same objects, accessed through a layer around the store."""
        return replace(self, _store=layer(self._store))

    def check(self) -> None:
        """Check that the store can be reached and listed.

        Raises: NotFound if the bucket or folder is missing.
        """
        self._store.check()

    def place(self, key: Key) -> str:
        """Return the object's full key in the store, for messages."""
        return self._prefix + key

    def get(self, key: Key) -> bytes:
        """Return the object. Raises NotFound if it does not exist."""
        return self._store.get(self._prefix + key)

    def get_into(self, key: Key, target: memoryview) -> int:
        """Write as much of the object to `target` as fits. Return the object's full size in bytes.

        Raises NotFound if the object does not exist.
        """
        return self._store.read_into(self._prefix + key, target)

    def exists(self, key: Key) -> bool:
        """Whether the object exists. The object itself is requested, because a listing may be outdated."""
        try:
            self.get(key)
        except NotFound:
            return False
        return True

    def put(self, key: Key, body: Body) -> None:
        """Store a new object durably. Raises ExistsError if the object exists."""
        self._store.put(self._prefix + key, body, only_if_absent=True)

    def put_alone(self, key: Key, body: Body) -> None:
        """Store a new object durably. No other process may write the object at the same time.

        Some stores that keep versions refuse a new object under the key of a removed object. In such a store, the
        object is written without the condition that no object exists.

        Raises: ExistsError if the object exists.
        """
        try:
            self.put(key, body)
        except ExistsError:
            if self.exists(key):
                raise
            self.overwrite(key, body)

    def put_same(self, key: Key, body: bytes, *, is_alone: bool = False) -> bool:
        """Store the object unless it exists. Return whether the object now has exactly the bytes of `body`.

        `is_alone` is True if no other process can write the object at the same time.
        """
        # If the answer to a request was lost, the repeated request finds the object of the first request. The
        # comparison below detects this.
        with contextlib.suppress(ExistsError):
            (self.put_alone if is_alone else self.put)(key, body)
        return self.get(key) == body

    def overwrite(self, key: Key, body: Body, *, sha256: str | None = None) -> None:
        """Store the object durably, and replace an existing object.

        `sha256` is the body's hash, if the caller has it.
        """
        self._store.put(self._prefix + key, body, sha256=sha256)

    def read_version(self, key: Key) -> Version:
        """Return the object with the tag of its version. Raises NotFound if the object does not exist."""
        return self._store.read_version(self._prefix + key)

    def replace(self, key: Key, body: Body, *, tag: str) -> None:
        """Replace the object if its version has the given tag.

        Raises ChangedError if the object has another version or does not exist.
        """
        self._store.replace(self._prefix + key, body, tag=tag)

    def delete(self, key: Key) -> None:
        """Remove the object. If the object is missing, no error is raised."""
        self._store.delete(self._prefix + key)

    def delete_many(self, keys: Sequence[Key]) -> None:
        """Remove the objects. Raises RepositoryError if the store refuses to remove an object.

        In that case, some objects may already have been removed.
        """
        self._store.delete_many([self._prefix + key for key in keys])

    def modified(self, key: Key) -> datetime | None:
        """Return the time of the object's last write, by the store's clock; None if the store does not report it."""
        path = self._prefix + key
        return next((item.modified for item in self._store.list(path) if item.key == path), None)

    def list(self, prefix: KeyPrefix[K]) -> Iterator[ListedObject[K]]:
        """Yield the objects below the prefix, sorted by key. Objects with foreign keys are omitted."""
        return (listed for listed in self.list_all(prefix) if listed is not None)

    def list_all(self, prefix: KeyPrefix[K]) -> Iterator[ListedObject[K] | None]:
        """Yield every object below the prefix, sorted by key. A foreign object is yielded as None.

        An object is foreign if its key does not match the pattern of the prefix's kind.
        """
        skipped = len(self._prefix)
        for item in self._store.list(self._prefix + prefix.path):
            key = prefix.parse(item.key[skipped:])
            listed = (item.size, item.modified, item.tag, item.archive_class)
            yield ListedObject(key, *listed) if key is not None else None

    def sizes(self, prefix: KeyPrefix[K]) -> dict[K, int]:
        """Return the size in bytes of each object below the prefix, keyed by object key."""
        return {listed.key: listed.size for listed in self.list(prefix)}

    def folders(self, prefix: KeyPrefix[K]) -> Iterator[str]:
        """Yield the names of the folders directly below the prefix, in order."""
        return self._store.folders(self._prefix + prefix.path)

    def top_folders(self) -> Iterator[str]:
        """Yield the names of the repository's folders, in order. Each may be the folder of an instance."""
        return self._store.folders(self._prefix)

    def hold(self, key: Key) -> ObjectHold | None:
        """Return the lock or legal hold that protects the object from removal; None if it is unprotected."""
        return self._store.hold(self._prefix + key)

    def extend_lock(self, key: Key, until: datetime) -> None:
        """Lock the object in the store at least until this time (UTC).

        Raises: NotFound if the object does not exist.
        """
        self._store.extend_lock(self._prefix + key, until)

    def retrieval(self, key: Key) -> Retrieval:
        """Return whether an object in an archive class can be read."""
        return self._store.retrieval(self._prefix + key)

    def retrieve(self, key: Key, tier: str, days: int) -> None:
        """Start the retrieval of an object in an archive class, unless it is running.

        Raises RepositoryError if the store has no archive classes, or refuses the retrieval.
        """
        self._store.retrieve(self._prefix + key, tier, days)

    def afterlife(self) -> DeletionPolicy:
        """Return how the store treats removed objects."""
        return self._store.afterlife()

    def give_up(self) -> None:
        """Stop retrying. A call that waits for its next attempt raises an error instead."""
        self._store.give_up()


_NO_FIELDS: set[str] = set()
_SHORT = 36
"""Maximum length of a text that probably occurs in many parts, such as the id of a server or repository, a name, or a
version.
"""
_BUILDING = threading.Lock()
"""In some versions of pydantic, two threads must not build a schema at the same time."""


class Part(BaseModel):
    """A part of a stored document. Unknown fields are ignored.

    The schema of a part is built at the first use. Most parts need no separate schema, because the schema of a document
    contains the schemas of its parts. Some commands read no document. In a thread, the first use must be `decode`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    def encode(self) -> bytes:
        """Return the stored form: compact JSON, UTF-8, in one line without its line feed."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, body: bytes, name: str) -> Self:
        """Return the document in `body`. `name` is the name of the object in errors.

        Raises: DamagedError if `body` is not a document of this type.
        """
        if not cls.__pydantic_complete__:
            with _BUILDING:
                cls.model_rebuild()
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise DamagedError(
                f"{name} cannot be read: {first_problem(error)}",
                hint="the object was altered, or a newer zsnapdb wrote it",
            ) from error

    def compact(self) -> Self:
        """Return an equal part that uses a third less memory.

        This helps a host that keeps thousands of parts in memory.

        The values are set one by one, so that all parts of the class share the table of names. The part no longer
        records which fields the document contained. Equal short texts are shared.
        """
        part = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            is_short = type(value) is str and len(value) <= _SHORT
            object.__setattr__(part, name, sys.intern(value) if is_short else value)
        object.__setattr__(part, "__pydantic_fields_set__", _NO_FIELDS)
        object.__setattr__(part, "__pydantic_extra__", None)
        object.__setattr__(part, "__pydantic_private__", None)
        return part
