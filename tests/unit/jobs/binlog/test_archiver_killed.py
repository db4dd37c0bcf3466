"""However the archiver is killed, the archive is right, and the next run completes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import cast

import pytest

from tests.unit.support.archived_server import CHUNK, Server
from zsnapdb.store.base import Store
from zsnapdb.stream.chunks import Body


class Killed(BaseException):
    """Stands for a kill -9, which no code handles."""


class Failing:
    """A store whose writer is killed before or after its Nth write."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self.store, self.left, self.after, self.lock = store, at, after, Lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def _step(self, write: Callable[[], None]) -> None:
        with self.lock:
            self.left -= 1
            is_last = self.left <= 0
        if is_last and not self.after:
            raise Killed
        write()
        if is_last:
            raise Killed

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._step(lambda: self.store.put(key, body, only_if_absent=only_if_absent, sha256=sha256))

    def delete(self, key: str) -> None:
        self._step(lambda: self.store.delete(key))


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_write_the_next_run_completes_the_archive(tmp_path: Path, after: bool) -> None:
    at = 0
    while True:
        at += 1
        (tmp_path / str(at)).mkdir()
        server = Server(tmp_path / str(at))
        server.commit(2)
        server.look()
        server.commit(1, size=int(1.5 * CHUNK))
        try:
            archiver = server.archiver(cast(Store, Failing(server.store, at, after=after)))
            archiver.look()
            server.rotate()
            server.commit(2)
            server.rotate()
            server.commit(1)
            archiver.look()
        except Killed:
            server.check(whole=False)
            if len(server.files) == 1:
                server.rotate()
            assert server.look().new_incarnation is None
            server.check()
            continue
        server.check()
        break
    assert at > 12
