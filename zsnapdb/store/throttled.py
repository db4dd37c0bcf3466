"""A layer around any store that limits the bandwidth."""

from __future__ import annotations

import threading
import time

from zsnapdb.base.errors import RepositoryError
from zsnapdb.store.base import Body, Store
from zsnapdb.store.layer import Layer


class ThrottledStore(Layer):
    """Moves at most `rate` bytes of objects per second, in both directions and by all threads together.

    The limit holds on the average of several objects.
    """

    def __init__(self, inner: Store, rate: int) -> None:
        super().__init__(inner)
        self.rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._over = threading.Event()

    def _pay(self, size: int) -> None:
        """Wait until the line is free. Then occupy it for the time that `size` bytes need."""
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
        """Store the object as soon as the line is free."""
        self._pay(len(body))
        self.inner.put(key, body, only_if_absent=only_if_absent, sha256=sha256)

    def get(self, key: str) -> bytes:
        """Return the object. Its size is known only afterwards, so the next object waits for it."""
        self._pay(0)
        body = self.inner.get(key)
        self._pay(len(body))
        return body

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the object. Its size is known only afterwards, so the next object waits for it."""
        self._pay(0)
        size = self.inner.read_into(key, target)
        self._pay(size)
        return size

    def give_up(self) -> None:
        """Stop waiting for the line."""
        self._over.set()
        self.inner.give_up()
