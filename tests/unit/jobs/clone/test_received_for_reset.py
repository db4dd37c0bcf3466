"""A reset that fails keeps no set that was received for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.clone import data_replacement


@pytest.mark.parametrize("step", ["cached_sets.begun_after", "commits", "_clone_beside"])
@pytest.mark.parametrize("error", [PreflightError("no"), KeyboardInterrupt()])
def test_a_reset_that_fails_after_its_set_was_received_removes_the_set(
    monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    held: list[bool] = []
    dropped: list[bool] = []

    @contextlib.contextmanager
    def using(_: str) -> Iterator[None]:
        held.append(True)
        try:
            yield
        finally:
            held.clear()

    @contextlib.contextmanager
    def if_none_uses(_: str) -> Iterator[bool]:
        dropped.append(not held)
        yield False

    def fails(*_: object, **__: object) -> Any:
        raise error

    for name in ("quota_beside", "_source", "cached_sets.begun_after", "commits", "_clone_beside"):
        done = fails if name == step else lambda *_, **__: None
        monkeypatch.setattr(f"zsnapdb.jobs.clone.data_replacement.{name}", done)
    monkeypatch.setattr("zsnapdb.jobs.clone.locks.using_received", using)
    monkeypatch.setattr("zsnapdb.jobs.clone.locks.if_none_uses_received", if_none_uses)
    info: Any = SimpleNamespace(instance="main", current="tank/c")
    unused: Any = SimpleNamespace()
    with pytest.raises(type(error)):
        data_replacement.replace_data(unused, unused, info, None, SILENT, accepts_older=False)
    assert dropped == [True]
