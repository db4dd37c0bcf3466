"""A layer around any store that tries again, for as long as it is told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zsnapdb.errors import ChangedError, ExistsError, NotThere, UnreachableError
from zsnapdb.store.base import Afterlife, Body, ObjectHold, Store, StoredObject, Version
from zsnapdb.store.layer import Layer

T = TypeVar("T")


@dataclass(frozen=True)
class Pauses:
    """How long a store waits between attempts, in seconds: first, then twice as long each time, up to the longest."""

    first: float = 0.5
    longest: float = 30.0

    reported: float = 4.0
    """A pause as long as this is reported."""

    check: float = 10.0
    """The check of a store is repeated for at most this time: the user hears of a wrong address soon."""


class PatientStore(Layer):
    """Asks again, with growing pauses, while the store cannot be reached or is busy, for up to `patience` seconds per call.

    What is refused, denied or not there is told at once. `tell` gets a line before each long pause.
    """

    def __init__(
        self, inner: Store, patience: float, tell: Callable[[str], None] | None = None, pauses: Pauses | None = None
    ) -> None:
        super().__init__(inner)
        self.patience = patience
        self.pauses = pauses or Pauses()
        self.tell = tell
        self._over = threading.Event()

    def _again(self, attempt: Callable[[], T], patience: float) -> T:
        deadline = time.monotonic() + patience
        pause = self.pauses.first
        while True:
            try:
                return attempt()
            except UnreachableError as error:
                left = deadline - time.monotonic()
                if left <= 0 or self._over.is_set():
                    raise
                # Not all workers at the same moment; and the last attempt is made when the time is up.
                wait = min(pause * random.uniform(0.75, 1.25), left)
                if self.tell is not None and pause >= self.pauses.reported:
                    self.tell(f"{error.message}; trying again in {wait:.0f} s, for up to {left:.0f} s more")
                if self._over.wait(wait):
                    raise
                pause = min(pause * 2, self.pauses.longest)

    def check(self) -> None:
        """Prove that the store can be reached, with little patience."""
        self._again(self.inner.check, min(self.patience, self.pauses.check))

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the object. After an attempt whose answer was lost, finding this very object there is success."""
        lost = False

        def attempt() -> None:
            nonlocal lost
            try:
                self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256)
            except UnreachableError:
                lost = True
                raise
            except ExistsError:
                if not (lost and self._holds(key, body)):
                    raise

        self._again(attempt, self.patience)

    def _holds(self, key: str, body: Body) -> bool:
        try:
            return self.inner.get(key) == bytes(body)
        except NotThere:
            return False

    def get(self, key: str) -> bytes:
        """Return the object; a reader is kept waiting while it cannot be had."""
        return self._again(lambda: self.inner.get(key), self.patience)

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the object; a reader is kept waiting while it cannot be had."""
        return self._again(lambda: self.inner.read_into(key, target), self.patience)

    def read_version(self, key: str) -> Version:
        """Return the object with its tag."""
        return self._again(lambda: self.inner.read_version(key), self.patience)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the version. After an attempt whose answer was lost, finding this very body there is success."""
        lost = False

        def attempt() -> None:
            nonlocal lost
            try:
                self.inner.replace(key, body, tag=tag)
            except UnreachableError:
                lost = True
                raise
            except ChangedError:
                if not (lost and self._holds(key, body)):
                    raise

        self._again(attempt, self.patience)

    def _resumed(self, begin: Callable[[], Iterator[T]], name: Callable[[T], str]) -> Iterator[T]:
        """Yield what an ordered listing tells, each once.

        One that breaks off is begun again and what was told is passed over.
        """
        told = ""
        listing: Iterator[T] | None = None

        def following() -> T | None:
            nonlocal listing
            try:
                if listing is None:
                    listing = begin()
                return next((item for item in listing if name(item) > told), None)
            except UnreachableError:
                listing = None
                raise

        while (item := self._again(following, self.patience)) is not None:
            told = name(item)
            yield item

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects."""
        yield from self._resumed(lambda: self.inner.list(prefix), lambda item: item.key)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names."""
        yield from self._resumed(lambda: self.inner.folders(prefix), str)

    def delete(self, key: str) -> None:
        """Remove the object."""
        self._again(lambda: self.inner.delete(key), self.patience)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects; after a break all are asked for again."""
        self._again(lambda: self.inner.delete_many(keys), self.patience)

    def hold(self, key: str) -> ObjectHold | None:
        """Return what holds the object."""
        return self._again(lambda: self.inner.hold(key), self.patience)

    def afterlife(self) -> Afterlife:
        """Return what becomes of removed objects."""
        return self._again(self.inner.afterlife, self.patience)

    def give_up(self) -> None:
        """Try nothing again from now on."""
        self._over.set()
        self.inner.give_up()
