"""A layer around a folder whose calls end although the file system hangs, such as NFS without its server.

The kernel may not let such a call end, not even by a signal. So another thread makes it, and is left behind. It is a
daemon: what is left of it ends with the process as soon as the kernel lets it.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from zsnapdb.base.errors import UnreachableError
from zsnapdb.store.base import Body, Store, StoredObject, Version
from zsnapdb.store.layer import Layer

CALL_SECONDS = 300.0
LEAST_RATE = 1 << 20
"""Bytes per second of an object. A folder may take as long for a call as both give."""
_LISTED_AT_ONCE = 1000

T = TypeVar("T")


class _Call(Generic[T]):
    """A call that another thread makes, and its result."""

    def __init__(self, what: Callable[[], T]) -> None:
        self._what: Callable[[], T] | None = what
        self._result: T | None = None
        self._error: BaseException | None = None
        self.began, self.process, self.done = time.monotonic(), os.getpid(), threading.Event()

    @property
    def hangs(self) -> bool:
        """Whether it has not ended. One of the process that forked this one says nothing here."""
        return not self.done.is_set() and self.process == os.getpid()

    def make(self) -> None:
        """Make the call; in the other thread."""
        assert self._what is not None
        try:
            self._result = self._what()
        except BaseException as error:
            self._error = error
        self._what = None
        self.done.set()

    def result(self) -> T:
        """Return what it returned, or raise its error."""
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


class _Worker:
    """A thread that makes one call after another for one thread of this process, as long as that has it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=_run, args=(self.calls,), name="folder", daemon=True).start()

    def __del__(self) -> None:
        self.calls.put(None)


def _run(calls: queue.SimpleQueue[_Call[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()


class TimedFolder(Layer):
    """The objects of a folder. UnreachableError if a call does not end, and for each further one until it has."""

    def __init__(self, inner: Store, folder: Path) -> None:
        super().__init__(inner)
        self._folder = folder
        self._own = threading.local()
        self._hung: _Call[Any] | None = None

    def _do(self, what: Callable[[], T], size: int = 0) -> T:
        if self._hung is not None and self._hung.hangs:
            raise self._error(time.monotonic() - self._hung.began)
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None or worker.process != os.getpid():
            worker = self._own.worker = _Worker()
        call, seconds = _Call(what), CALL_SECONDS + size / LEAST_RATE
        worker.calls.put(call)
        if not call.done.wait(seconds):
            self._hung, self._own.worker = call, None
            raise self._error(seconds)
        return call.result()

    def _error(self, seconds: float) -> UnreachableError:
        return UnreachableError(
            f"{self._folder} does not answer: a call has not ended for {seconds:.0f} s",
            hint="check the mount and its server; what hangs in the kernel ends when the server answers, or by"
            " `umount -f`",
        )

    def check(self) -> None:
        self._do(self.inner.check)

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._do(partial(self.inner.put, key, body, only_if_absent=only_if_absent, sha256=sha256), len(body))

    def get(self, key: str) -> bytes:
        return self._do(partial(self.inner.get, key))

    def read_into(self, key: str, target: memoryview) -> int:
        return self._do(partial(self.inner.read_into, key, target), len(target))

    def read_version(self, key: str) -> Version:
        return self._do(partial(self.inner.read_version, key))

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self._do(partial(self.inner.replace, key, body, tag=tag), len(body))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._each(partial(self.inner.list, prefix))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._each(partial(self.inner.folders, prefix))

    def _each(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        listing = self._do(begin)
        while part := self._do(lambda: tuple(itertools.islice(listing, _LISTED_AT_ONCE))):
            yield from part

    def delete(self, key: str) -> None:
        self._do(partial(self.inner.delete, key))

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)
