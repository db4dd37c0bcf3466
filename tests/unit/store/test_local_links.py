"""A folder on a file system without hard links is refused at the first object, and nothing is left of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from zsnapdb.base.errors import RepositoryError
from zsnapdb.store.local import LocalStore


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # vfat says EPERM to link(2); there is no such file system where these tests run.
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(RepositoryError, match="cannot make hard links") as caught:
        LocalStore(tmp_path).put("repository.json", b"{}", only_if_absent=True)
    assert "vfat" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [-(10**15), 10**12, 2**60])
def test_time_outside_of_the_calendar_stops_no_listing(
    seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.lstat

    def lstat(path: str) -> SimpleNamespace:
        seen = real(path)
        times = {"st_mtime": float(seconds), "st_mtime_ns": seconds * 10**9, "st_ctime_ns": seen.st_ctime_ns}
        return SimpleNamespace(st_size=seen.st_size, st_ino=seen.st_ino, st_mode=seen.st_mode, **times)

    LocalStore(tmp_path).put("a/k", b"x")
    monkeypatch.setattr(os, "lstat", lstat)
    assert [(item.key, item.modified) for item in LocalStore(tmp_path).list("a/")] == [("a/k", None)]
