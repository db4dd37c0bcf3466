"""Layers around stores for retries, a bandwidth limit and cached answers. `open_store` opens an address."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import TypeVar

from zsnapdb.base.errors import (
    ChangedError,
    ExistsError,
    NotFound,
    RepositoryError,
    UnreachableError,
    ZsnapdbError,
    missing_library,
)
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.store.base import Body, DeletionPolicy, ObjectHold, Retrieval, Store, StoredObject, Version

T = TypeVar("T")


class Layer:
    """A store that forwards every call to `inner`.

    A subclass overrides single calls, or `_call`, which makes all calls except listings and calls about locks.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def _call(self, attempt: Callable[[], T], size: int = 0) -> T:  # noqa: ARG002 - for those that limit the time
        """Make a call that transfers up to `size` bytes. Listings and calls about locks do not use this method."""
        return attempt()

    def check(self) -> None:
        self._call(self.inner.check)

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._call(lambda: self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256), len(body))

    def get(self, key: str) -> bytes:
        return self._call(lambda: self.inner.get(key))

    def read_into(self, key: str, target: memoryview) -> int:
        return self._call(lambda: self.inner.read_into(key, target), len(target))

    def read_version(self, key: str) -> Version:
        return self._call(lambda: self.inner.read_version(key))

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self._call(lambda: self.inner.replace(key, body, tag=tag), len(body))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._call(lambda: self.inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._call(lambda: self.inner.delete_many(keys))

    def folders(self, prefix: str) -> Iterator[str]:
        return self.inner.folders(prefix)

    def hold(self, key: str) -> ObjectHold | None:
        return self.inner.hold(key)

    def extend_lock(self, key: str, until: datetime) -> None:
        self.inner.extend_lock(key, until)

    def retrieval(self, key: str) -> Retrieval:
        return self._call(lambda: self.inner.retrieval(key))

    def retrieve(self, key: str, tier: str, days: int) -> None:
        self._call(lambda: self.inner.retrieve(key, tier, days))

    def afterlife(self) -> DeletionPolicy:
        return self.inner.afterlife()

    def give_up(self) -> None:
        self.inner.give_up()


class ThrottledStore(Layer):
    """A store that transfers at most `rate` object bytes per second.

    The limit applies to reads and writes of all threads together, on average over several objects.
    """

    def __init__(self, inner: Store, rate: int) -> None:
        super().__init__(inner)
        self.rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._over = threading.Event()

    def _pay(self, size: int) -> None:
        """Wait until the time reserved for earlier transfers is over. Then reserve the time for `size` bytes."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self.rate
        if self._over.wait(begin - now):
            raise RepositoryError(
                "given up while waiting for the bandwidth limit",
                hint="another part of the run failed; see the error of that part",
            )

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._pay(len(body))
        self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256)

    def get(self, key: str) -> bytes:
        """Return the object.

        Its size is unknown before the read, so the next transfer waits for this transfer's reserved time.
        """
        self._pay(0)
        body = self.inner.get(key)
        self._pay(len(body))
        return body

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the object.

        Its size is unknown before the read, so the next transfer waits for this transfer's reserved time.
        """
        self._pay(0)
        size = self.inner.read_into(key, target)
        self._pay(size)
        return size

    def give_up(self) -> None:
        self._over.set()
        self.inner.give_up()


@dataclass(frozen=True)
class Pauses:
    """The pauses between attempts, in seconds.

    The first pause is doubled after each attempt, up to the longest pause.
    """

    first: float = 0.5
    longest: float = 30.0

    reported: float = 4.0
    """Only pauses of at least this length (in seconds) are reported."""

    check: float = 10.0
    """Time limit in seconds for retries while a store is checked.

    It is short, so that a user soon sees that an address is wrong.
    """


class RetryingStore(Layer):
    """A store that repeats calls with growing pauses for up to `patience` seconds while `inner` is unreachable or busy.

    All other errors are raised immediately. A repeated `delete_many` requests the removal of all its objects again.
    `tell` is called with a message before each long pause. After a call that failed for the whole `patience`, each
    further call makes one attempt until the store answers. So a run does not wait `patience` seconds for each call.
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

    def _call(self, attempt: Callable[[], T], size: int = 0) -> T:  # noqa: ARG002 - as in `Layer`
        return self._again(attempt, self.patience)

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
                # The pauses are random, so that the workers do not all try at the same moment. The last attempt is at
                # the deadline.
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
        """Check that the store can be reached. Retry for at most `pauses.check` seconds."""
        self._again(self.inner.check, min(self.patience, self.pauses.check))

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the object. If an attempt's answer was lost and the object now has this body, the call succeeds."""
        self._write(
            lambda: self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256), ExistsError, key, body
        )

    def _write(
        self, write: Callable[[], None], refusal: type[ExistsError | ChangedError], key: str, body: Body
    ) -> None:
        """Write the object. If a refusal follows a lost answer and the object now has this body, the call succeeds."""
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

        self._call(attempt)

    def _holds(self, key: str, body: Body) -> bool:
        try:
            return self.inner.get(key) == bytes(body)
        except NotFound:
            return False

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the version. If an attempt's answer was lost and the object now has this body, the call succeeds."""
        self._write(lambda: self.inner.replace(key, body, tag=tag), ChangedError, key, body)

    def _resumed(self, begin: Callable[[], Iterator[T]], name: Callable[[T], str]) -> Iterator[T]:
        """Yield the items of a sorted listing, each once.

        A broken listing is restarted, and the items that were already yielded are skipped. Raises RepositoryError if
        the listing is not sorted. An unsorted listing could lose items, or repeat a page endlessly.
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

        while (item := self._call(following)) is not None:
            last_name = name(item)
            yield item

    def list(self, prefix: str) -> Iterator[StoredObject]:
        yield from self._resumed(lambda: self.inner.list(prefix), lambda item: item.key)

    def folders(self, prefix: str) -> Iterator[str]:
        yield from self._resumed(lambda: self.inner.folders(prefix), str)

    def hold(self, key: str) -> ObjectHold | None:
        return self._call(lambda: self.inner.hold(key))

    def extend_lock(self, key: str, until: datetime) -> None:
        self._call(lambda: self.inner.extend_lock(key, until))

    def afterlife(self) -> DeletionPolicy:
        return self._call(self.inner.afterlife)

    def give_up(self) -> None:
        """Stop repeating calls from now on."""
        self._over.set()
        self.inner.give_up()


LARGEST = 1 << 20
"""Objects larger than this (in bytes) are fetched again.

Such objects are not kept in memory, because the memory holds many objects.
"""
MISSING = ""
"""The digest of an object that does not exist."""


@dataclass(frozen=True)
class Remembered:
    """An object from an earlier read, with its bytes, and its size and tag in the listing."""

    size: int
    tag: str
    body: bytes


@dataclass
class Trace:
    """Digests of the data on which a read depends: listings, keyed by prefix, and objects that were not listed."""

    listings: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)


class RememberingStore(Layer):
    """A read-only store that fetches each listing and each object once.

    `known` maps keys to objects from earlier reads. An object with the same size and tag in a listing is not fetched
    again.
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
        if prefix not in self._listings:
            listing = tuple(self.inner.list(prefix))
            self._listings[prefix] = listing
            self._listed |= {item.key: item for item in listing}
            self.trace.listings[prefix] = digest(listing)
        yield from self._listings[prefix]

    def get(self, key: str) -> bytes:
        if key not in self._bodies:
            self._bodies[key] = self._read(key)
        body = self._bodies[key]
        if body is None:
            raise NotFound(f"object {key} is not there")
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
            except NotFound:
                body = None
        if listed is None:
            self.trace.objects[key] = MISSING if body is None else hashlib.sha256(body).hexdigest()
        elif body is None:
            # The object was removed after the listing was read, so the cached listings are outdated.
            self._listings = {path: items for path, items in self._listings.items() if not key.startswith(path)}
            self._listed.pop(key)
        elif listed.tag and len(body) == listed.size and len(body) <= LARGEST:
            self.kept[key] = Remembered(listed.size, listed.tag, body)
        return body

    def is_as(self, before: Trace) -> bool:
        """Return whether all objects on which an earlier read depends are unchanged.

        The comparison stops at the first difference.
        """
        for prefix, was in before.listings.items():
            for _ in self.list(prefix):
                break
            if self.trace.listings[prefix] != was:
                return False
        for key, was in before.objects.items():
            with contextlib.suppress(NotFound):
                self.get(key)
            if self.trace.objects.get(key) != was:
                return False
        return True


def digest(listing: tuple[StoredObject, ...]) -> str:
    """Return a digest of a listing, from the key, size, tag and modification time of each object."""
    named = hashlib.sha256()
    for item in listing:
        when = item.modified.isoformat() if item.modified is not None else ""
        named.update(f"{item.key}\0{item.size}\0{item.tag}\0{when}\n".encode())
    return named.hexdigest()


STORES = {
    "file": "zsnapdb.store.local",
    "s3": "zsnapdb.store.s3",
    "azure": "zsnapdb.store.cloud",
    "gs": "zsnapdb.store.cloud",
}
"""The module of each kind of store, by URL scheme.

`open_at(settings)` of the module returns the store and the key prefix. A module is imported only when it is used,
because client libraries are large. `STORE_ADDRESSES` in the configuration defines the syntax of each kind of address.
"""


EXTRAS = {"azure": "azure", "gs": "gcs"}
"""The optional dependency group of zsnapdb that contains the client library, by URL scheme."""


def refuse_unfit(settings: RepositorySettings) -> None:
    """Raise PreflightError if the store is a folder on a file system that cannot hold a repository."""
    if settings.address.scheme == "file":
        import_module(STORES["file"]).refuse_unfit(settings)


def open_store(settings: RepositorySettings, tell: Callable[[str], None] | None = None) -> tuple[Store, str]:
    """Return the repository's store and key prefix ("" or ending in a slash). No request is sent yet.

    The store has the configured patience and bandwidth. `tell` is called with a message before each long pause between
    attempts. Raises ConfigError if the client library is not installed.
    """
    scheme = settings.address.scheme
    try:
        module = import_module(STORES[scheme])
    except ImportError as error:
        raise missing_library(EXTRAS.get(scheme, ""), error) from error
    opened: tuple[Store, str] = module.open_at(settings)
    store, prefix = opened
    if settings.bandwidth is not None:
        store = ThrottledStore(store, settings.bandwidth)
    return RetryingStore(store, settings.patience, tell), prefix
