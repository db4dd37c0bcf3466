"""The object store protocol, and what every store promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class StoredObject:
    """An object that exists: its key, its size in bytes, and when it was written by the store's own clock (None: not known)."""

    key: str
    size: int
    modified: datetime | None = None


Body = bytes | bytearray | memoryview
"""The bytes of an object to be stored; a memoryview is of single bytes in one piece."""


@dataclass(frozen=True)
class Version:
    """An object's bytes, and the tag that stands for exactly this version of it."""

    body: bytes
    tag: str


@dataclass(frozen=True)
class ObjectHold:
    """The store itself keeps an object: until a time (UTC), or, without one, until somebody lifts a legal hold."""

    until: datetime | None


@dataclass(frozen=True)
class Afterlife:
    """What becomes of removed objects.

    Whether they stay as older versions (None: the store does not say); after how many days its rules remove those
    (None: never, or not known); and whether objects can be locked, so that asking for a `hold` has a point.
    """

    keeps_versions: bool | None
    days: int | None = None
    has_locks: bool = False


class Store(Protocol):
    """Whole objects under keys with slashes. Every method raises RepositoryError when the store cannot be asked.

    "Could not ask" is never answered with "not there": it is UnreachableError if another attempt may succeed.
    """

    def check(self) -> None:
        """Prove that the store can be reached and listed; NotThere if the bucket or folder is missing."""

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the object whole and durably. ExistsError if `only_if_absent` and there is one.

        `sha256` is the body's, in hexadecimal, where the caller has it: a store that proves what it received need not
        compute it again.
        """

    def get(self, key: str) -> bytes:
        """Return the object; NotThere if there is none."""

    def read_into(self, key: str, target: memoryview) -> int:
        """Write the object to the beginning of `target`, as much of it as fits, and return its whole size in bytes.

        NotThere if there is none.

        After an error `target` may hold anything.
        """

    def read_version(self, key: str) -> Version:
        """Return the object with its tag; NotThere if there is none."""

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Store the object in place of the version with the tag; ChangedError if it is another, or gone.

        Of several replacements of the same version one succeeds. One whose answer was lost may have been done: read
        again.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with the prefix, by key."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there counts as removed."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, many in one request where the store can.

        RepositoryError if one was refused; others may be gone.
        """

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield, in order, each name up to the next slash that keys under the prefix (ending in a slash) go on with."""

    def hold(self, key: str) -> ObjectHold | None:
        """Return what keeps the store from removing the object for good.

        None if nothing does, or if it is not there.
        """

    def afterlife(self) -> Afterlife:
        """Return what becomes of objects that are removed."""

    def give_up(self) -> None:
        """Wait for nothing any more: calls under way that only wait for another attempt raise soon, later ones get one attempt."""
