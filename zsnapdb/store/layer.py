"""A store that passes every call on to another store: the base of layers around stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from zsnapdb.store.base import Afterlife, Body, ObjectHold, Store, StoredObject, Version


class Layer:
    """A store that passes every call on to `inner`. Subclasses override some calls."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def check(self) -> None:
        self.inner.check()

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def read_into(self, key: str, target: memoryview) -> int:
        return self.inner.read_into(key, target)

    def read_version(self, key: str) -> Version:
        return self.inner.read_version(key)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self.inner.replace(key, body, tag=tag)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        self.inner.delete_many(keys)

    def folders(self, prefix: str) -> Iterator[str]:
        return self.inner.folders(prefix)

    def hold(self, key: str) -> ObjectHold | None:
        return self.inner.hold(key)

    def extend_lock(self, key: str, until: datetime) -> None:
        self.inner.extend_lock(key, until)

    def afterlife(self) -> Afterlife:
        return self.inner.afterlife()

    def give_up(self) -> None:
        self.inner.give_up()
