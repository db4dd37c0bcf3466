"""The object store protocol, and what every store promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StoredObject:
    """An object that exists: its key and its size in bytes."""

    key: str
    size: int


Body = bytes | bytearray | memoryview
"""The bytes of an object to be stored; a memoryview is of single bytes in one piece."""


@dataclass(frozen=True)
class Version:
    """An object's bytes, and the tag that stands for exactly this version of it."""

    body: bytes
    tag: str


class Store(Protocol):
    """Whole objects under keys with slashes. Every method raises RepositoryError when the store cannot be asked.

    "Could not ask" is never answered with "not there".
    """

    def check(self) -> None:
        """Prove that the store can be reached and listed; NotThere if the bucket or folder is missing."""

    def put(self, key: str, body: Body, *, only_if_absent: bool = False) -> None:
        """Store the object whole and durably. ExistsError if `only_if_absent` and there is one."""

    def get(self, key: str) -> bytes:
        """Return the object; NotThere if there is none."""

    def read_version(self, key: str) -> Version:
        """Return the object with its tag; NotThere if there is none."""

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Store the object in place of the version with the tag; ChangedError if it is another, or gone.

        Of several replacements of the same version one succeeds. One whose answer was lost may have been done: read again.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with the prefix, by key."""

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there counts as removed."""
