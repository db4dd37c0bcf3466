"""A layer around a store that reads what it has read before from memory, and notes what an answer depended on.

What a listing names with the same tag and size is the same object. So a reader that comes again asks for the listings,
and fetches only objects that are new.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zsnapdb.base.errors import NotThere
from zsnapdb.store.base import Store, StoredObject
from zsnapdb.store.layer import Layer

LARGEST = 1 << 20
"""Larger objects (bytes) are fetched again: this host keeps many."""
MISSING = ""
"""The digest of an object that does not exist."""


@dataclass(frozen=True)
class Remembered:
    """An object of an earlier reading: its bytes, and the size and tag that the listing had."""

    size: int
    tag: str
    body: bytes


@dataclass
class Trace:
    """What a reading depended on: a digest of each listing by its prefix, and of each object that no listing named."""

    listings: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)


class RememberingStore(Layer):
    """A store of which each listing and each object is asked for once. Nothing can be written through it.

    `known` are objects of earlier readings by key. Those that a listing names with the same size and tag are not
    fetched.
    """

    def __init__(self, inner: Store, known: Mapping[str, Remembered] | None = None) -> None:
        super().__init__(inner)
        self.known = known or {}
        self.trace = Trace()
        self.kept: dict[str, Remembered] = {}
        self._listings: dict[str, tuple[StoredObject, ...]] = {}
        self._listed: dict[str, StoredObject] = {}
        self._bodies: dict[str, bytes | None] = {}

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects as they were listed first."""
        if prefix not in self._listings:
            listing = tuple(self.inner.list(prefix))
            self._listings[prefix] = listing
            self._listed |= {item.key: item for item in listing}
            self.trace.listings[prefix] = digest(listing)
        yield from self._listings[prefix]

    def get(self, key: str) -> bytes:
        """Return the object as it was read first."""
        if key not in self._bodies:
            self._bodies[key] = self._read(key)
        body = self._bodies[key]
        if body is None:
            raise NotThere(f"object {key} is not there")
        return body

    def _read(self, key: str) -> bytes | None:
        listed, known = self._listed.get(key), self.known.get(key)
        is_same = listed is not None and known is not None and (listed.size, listed.tag) == (known.size, known.tag)
        body: bytes | None
        if is_same and known is not None and known.tag:
            body = known.body
        else:
            try:
                body = self.inner.get(key)
            except NotThere:
                body = None
        if listed is None:
            self.trace.objects[key] = MISSING if body is None else hashlib.sha256(body).hexdigest()
        elif body is None:
            # It was removed after it was listed: who lists again must see that.
            self._listings = {path: items for path, items in self._listings.items() if not key.startswith(path)}
            self._listed.pop(key)
        elif listed.tag and len(body) == listed.size and len(body) <= LARGEST:
            self.kept[key] = Remembered(listed.size, listed.tag, body)
        return body

    def is_as(self, before: Trace) -> bool:
        """Whether everything that an earlier reading depended on is as it was then. Stops at the first difference."""
        for prefix, was in before.listings.items():
            for _ in self.list(prefix):
                break
            if self.trace.listings[prefix] != was:
                return False
        for key, was in before.objects.items():
            with contextlib.suppress(NotThere):
                self.get(key)
            if self.trace.objects.get(key) != was:
                return False
        return True


def digest(listing: tuple[StoredObject, ...]) -> str:
    """Return a digest of a listing: of the key, size and tag of each object."""
    named = hashlib.sha256()
    for item in listing:
        when = item.modified.isoformat() if item.modified is not None else ""
        named.update(f"{item.key}\0{item.size}\0{item.tag}\0{when}\n".encode())
    return named.hexdigest()
