"""A folder whose file system cannot do what the work needs is refused before the work, and left as it was."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base import filesystem_checks
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.filesystem_checks import REPOSITORY, Ability

_CALLS = {"link": Ability.LINK, "rename": Ability.REPLACE, "fsync": Ability.SYNC}


def test_a_usual_file_system_lacks_nothing_and_stays_as_it_was(tmp_path: Path) -> None:
    assert filesystem_checks.lacking(tmp_path, REPOSITORY) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", _CALLS)
def test_a_call_that_the_file_system_refuses_is_named(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(PreflightError, match=_CALLS[call].words):
        filesystem_checks.refuse_unfit(tmp_path, REPOSITORY, "use another one")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def _as_mounted(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], mode: int = 0) -> None:
    """Open files as a file system does that folds case, or whose files all have one mode."""
    opened, status = os.open, os.fstat

    def fold(path: Any, flags: int, *more: Any, **places: Any) -> int:
        return opened(change(str(path)), flags, *more, **places)

    def of_mount(descriptor: int) -> os.stat_result:
        found = status(descriptor)
        return os.stat_result((found.st_mode | mode, *tuple(found)[1:])) if stat.S_ISREG(found.st_mode) else found

    monkeypatch.setattr(os, "open", fold)
    monkeypatch.setattr(os, "fstat", of_mount)


def test_a_file_system_that_folds_case_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _as_mounted(monkeypatch, lambda path: path.lower() if path == "Upper" else path)
    lacks = filesystem_checks.lacking(tmp_path, REPOSITORY)
    monkeypatch.undo()
    assert list(lacks) == [Ability.CASE]


def test_a_file_system_whose_files_all_can_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _as_mounted(monkeypatch, lambda path: path, mode=0o044)
    lacks, others = filesystem_checks.lacking(tmp_path, REPOSITORY), filesystem_checks.lacking(tmp_path, [Ability.LINK])
    monkeypatch.undo()
    assert list(lacks) == [Ability.PRIVATE]
    assert others == {}
