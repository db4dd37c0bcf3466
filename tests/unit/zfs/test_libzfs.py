"""What the library says of a name is an answer only if the kernel gave one."""

from __future__ import annotations

import ctypes
import errno
from typing import Any, cast

import pytest

from zsnapdb.base.errors import CommandError
from zsnapdb.zfs import command, datasets, libzfs
from zsnapdb.zfs.libzfs import Core


class Library:
    """A libzfs_core whose ioctl ends with that error number (0: it went well)."""

    def __init__(self, number: int) -> None:
        self.number = number

    def lzc_exists(self, name: bytes) -> int:
        ctypes.set_errno(self.number)
        return int(self.number == 0)


@pytest.mark.parametrize(
    ("number", "answer"), [(0, True), (errno.ENOENT, False), (errno.EAGAIN, None), (errno.EIO, None)]
)
def test_only_a_name_that_the_kernel_does_not_know_is_not_there(number: int, answer: bool | None) -> None:
    assert Core(cast("Any", Library(number)), cast("Any", None)).exists("tank/a") is answer


def test_of_a_pool_that_is_suspended_the_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = Core(cast("Any", Library(errno.EAGAIN)), cast("Any", None))
    asked: list[list[str]] = []

    def refused(argv: list[str]) -> str:
        asked.append(argv)
        raise command.failure(argv, 1, "cannot open 'tank/a': pool I/O is currently suspended")

    monkeypatch.setattr(libzfs, "load", lambda: suspended)
    monkeypatch.setattr(datasets, "run", refused)
    with pytest.raises(CommandError, match="currently suspended"):
        datasets.exists("tank/a")
    assert [argv[-1] for argv in asked] == ["tank/a"]
