"""A store around another store that fails on command, in the ways of real stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from zsnapdb.base.errors import RepositoryError, UnreachableError
from zsnapdb.store.base import Body, Store, StoredObject, Version
from zsnapdb.store.layers import Layer


class Fault(Enum):
    """The fault of one call."""

    FINE = auto()
    UNREACHED = auto()
    """A network error; the store did nothing."""
    THROTTLED = auto()
    """The store reports that it is busy, and did nothing."""
    ANSWER_LOST = auto()
    """The store did the work, but the answer was lost."""
    DENIED = auto()
    """The store refuses, as with wrong credentials, and did nothing."""
    SLOW = auto()
    """The store does the work after a moment."""
    CUT = auto()
    """Only half of the body is written or read, without an error."""
    LIE = auto()
    """The store reports success, but wrote or removed nothing."""
    ALTERED = auto()
    """One bit of the body is flipped."""


class FaultyStore(Layer):
    """Applies the faults in `faults`, in order, to the calls named there ("put", "get" …); later calls have no fault.

    Listings do not show the `lag` objects written last. `calls` records all calls.
    """

    def __init__(self, inner: Store, faults: Mapping[str, Sequence[Fault]] | None = None, *, lag: int = 0) -> None:
        super().__init__(inner)
        self.faults = {name: list(sequence) for name, sequence in (faults or {}).items()}
        self.lag = lag
        self.written: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.given_up = False
        self._lock = threading.Lock()

    def _next(self, call: str, key: str) -> Fault:
        with self._lock:
            self.calls.append((call, key))
            waiting = self.faults.get(call)
            fault = waiting.pop(0) if waiting else Fault.FINE
        if fault is Fault.UNREACHED:
            raise UnreachableError(f"{call} {key}: connection reset")
        if fault is Fault.THROTTLED:
            raise UnreachableError(f"{call} {key}: reduce your request rate (SlowDown)")
        if fault is Fault.DENIED:
            raise RepositoryError(f"{call} {key}: access denied (AccessDenied)")
        if fault is Fault.SLOW:
            time.sleep(0.05)
        return fault

    @staticmethod
    def _spoil(fault: Fault, body: Body) -> Body:
        if fault is Fault.CUT:
            return bytes(body)[: len(body) // 2]
        if fault is Fault.ALTERED:
            spoilt = bytearray(body)
            spoilt[len(spoilt) // 2] ^= 1
            return spoilt
        return body

    def _answer(self, fault: Fault, call: str, key: str) -> None:
        if fault is Fault.ANSWER_LOST:
            raise UnreachableError(f"{call} {key}: the connection was closed before the answer")

    def check(self) -> None:
        self._next("check", "")
        self.inner.check()

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        fault = self._next("put", key)
        if fault is not Fault.LIE:
            spoilt = self._spoil(fault, body)
            self.inner.put(key, spoilt, only_if_absent=only_if_absent, sha256=sha256 if spoilt is body else None)
            self.written.append(key)
        self._answer(fault, "put", key)

    def get(self, key: str) -> bytes:
        fault = self._next("get", key)
        body = bytes(self._spoil(fault, self.inner.get(key)))
        self._answer(fault, "get", key)
        return body

    def read_into(self, key: str, target: memoryview) -> int:
        fault = self._next("read_into", key)
        body = self._spoil(fault, self.inner.get(key))
        taken = min(len(body), len(target))
        target[:taken] = memoryview(body)[:taken]
        self._answer(fault, "read_into", key)
        return len(body)

    def read_version(self, key: str) -> Version:
        fault = self._next("read_version", key)
        version = self.inner.read_version(key)
        self._answer(fault, "read_version", key)
        return version

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        fault = self._next("replace", key)
        if fault is not Fault.LIE:
            self.inner.replace(key, self._spoil(fault, body), tag=tag)
        self._answer(fault, "replace", key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        unseen = set(self.written[-self.lag :]) if self.lag else set()
        for number, item in enumerate(self.inner.list(prefix)):
            if number in (0, 3):
                # At the start, and once more in the middle.
                self._answer(self._next("list", prefix), "list", prefix)
            if item.key not in unseen:
                yield item

    def folders(self, prefix: str) -> Iterator[str]:
        self._answer(self._next("folders", prefix), "folders", prefix)
        yield from self.inner.folders(prefix)

    def delete(self, key: str) -> None:
        fault = self._next("delete", key)
        if fault is not Fault.LIE:
            self.inner.delete(key)
        self._answer(fault, "delete", key)

    def delete_many(self, keys: Sequence[str]) -> None:
        fault = self._next("delete_many", ",".join(keys))
        if fault is not Fault.LIE:
            self.inner.delete_many(keys)
        self._answer(fault, "delete_many", "")

    def give_up(self) -> None:
        self.given_up = True
        self.inner.give_up()
