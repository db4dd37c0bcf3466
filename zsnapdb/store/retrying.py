"""A layer around any store that repeats failed calls, for a configured time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from zsnapdb.base.errors import ChangedError, ExistsError, NotThere, RepositoryError, UnreachableError, ZsnapdbError
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


class RetryingStore(Layer):
    """Repeats a call while the store cannot be reached or is busy, with growing pauses, for up to `patience` seconds.

    All other errors are raised at once. `tell` gets a line before each long pause. After a call that waited in vain for
    all of `patience`, the following calls make one attempt each until the store answers: the calls of a run do not add
    up their waits.
    """

    def __init__(
        self, inner: Store, patience: float, tell: Callable[[str], None] | None = None, pauses: Pauses | None = None
    ) -> None:
        super().__init__(inner)
        self.patience = patience
        self.pauses = pauses or Pauses()
        self.tell = tell
        self._over = threading.Event()
        self._is_away = False

    def _again(self, attempt: Callable[[], T], patience: float) -> T:
        deadline = time.monotonic() + (0.0 if self._is_away else patience)
        pause = self.pauses.first
        while True:
            try:
                answer = attempt()
            except UnreachableError as error:
                left = deadline - time.monotonic()
                if left <= 0 or self._over.is_set():
                    self._is_away = self._is_away or patience >= self.patience
                    raise
                # Random pauses, so that not all workers try at the same moment. The last attempt is at the deadline.
                wait = min(pause * random.uniform(0.75, 1.25), left)
                if self.tell is not None and pause >= self.pauses.reported:
                    self.tell(f"{error.message}; trying again in {wait:.0f} s, for up to {left:.0f} s more")
                if self._over.wait(wait):
                    raise
                pause = min(pause * 2, self.pauses.longest)
            except ZsnapdbError:
                self._is_away = False
                raise
            else:
                self._is_away = False
                return answer

    def check(self) -> None:
        """Prove that the store can be reached. The patience is at most `pauses.check` seconds."""
        self._again(self.inner.check, min(self.patience, self.pauses.check))

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the object. If the answer to an attempt was lost and the object now has this body, that is success."""
        self._write(
            lambda: self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256), ExistsError, key, body
        )

    def _write(
        self, write: Callable[[], None], refusal: type[ExistsError | ChangedError], key: str, body: Body
    ) -> None:
        """Write. A refusal after an answer that was lost is success if the object now has this body."""
        lost = False

        def attempt() -> None:
            nonlocal lost
            try:
                write()
            except UnreachableError:
                lost = True
                raise
            except refusal:
                if not (lost and self._holds(key, body)):
                    raise

        self._again(attempt, self.patience)

    def _holds(self, key: str, body: Body) -> bool:
        try:
            return self.inner.get(key) == bytes(body)
        except NotThere:
            return False

    def get(self, key: str) -> bytes:
        """Return the object. The caller waits while the store cannot be reached."""
        return self._again(lambda: self.inner.get(key), self.patience)

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the object. The caller waits while the store cannot be reached."""
        return self._again(lambda: self.inner.read_into(key, target), self.patience)

    def read_version(self, key: str) -> Version:
        """Return the object with its tag."""
        return self._again(lambda: self.inner.read_version(key), self.patience)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the version. If an attempt's answer was lost and the object now has this body, that is success."""
        self._write(lambda: self.inner.replace(key, body, tag=tag), ChangedError, key, body)

    def _resumed(self, begin: Callable[[], Iterator[T]], name: Callable[[T], str]) -> Iterator[T]:
        """Yield the items of an ordered listing, each once.

        A listing that breaks off is started again, and the items that were yielded before are skipped. RepositoryError
        if the listing is not in order: what was skipped would be missing, and a repeated page would never end.
        """
        last_name = ""
        listing: Iterator[T] | None = None
        is_resumed = False

        def following() -> T | None:
            nonlocal listing, is_resumed
            try:
                if listing is None:
                    listing = begin()
                for item in listing:
                    if name(item) > last_name:
                        is_resumed = False
                        return item
                    if not is_resumed:
                        raise RepositoryError(
                            f"the store lists {name(item)} after {last_name}",
                            hint="use a store that lists its objects in the order of their keys, each once",
                        )
                return None
            except UnreachableError:
                listing, is_resumed = None, True
                raise

        while (item := self._again(following, self.patience)) is not None:
            last_name = name(item)
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
        """Remove the objects. After a failed attempt the request for all of them is repeated."""
        self._again(lambda: self.inner.delete_many(keys), self.patience)

    def hold(self, key: str) -> ObjectHold | None:
        """Return the lock or legal hold of the object."""
        return self._again(lambda: self.inner.hold(key), self.patience)

    def extend_lock(self, key: str, until: datetime) -> None:
        """Lock the object until this time at least."""
        self._again(lambda: self.inner.extend_lock(key, until), self.patience)

    def afterlife(self) -> Afterlife:
        """Return how the store treats removed objects."""
        return self._again(self.inner.afterlife, self.patience)

    def give_up(self) -> None:
        """Stop repeating calls from now on."""
        self._over.set()
        self.inner.give_up()
