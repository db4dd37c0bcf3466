"""Checks whether a folder's file system supports the operations that are needed later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from enum import Enum
from pathlib import Path

from zsnapdb.base.errors import PreflightError

_UNFINISHED = ".writing-"
"""Name prefix of the test folder. The repository ignores names with this prefix."""
_OTHERS = 0o077


def _is_private(at: int) -> None:
    if os.fstat(_create_file("private", at)).st_mode & _OTHERS:
        raise OSError(0, "other accounts can read a file with mode 0600")


def _links(at: int) -> None:
    os.link("file", "linked", src_dir_fd=at, dst_dir_fd=at)


def _replaces(at: int) -> None:
    os.close(_create_file("newer", at))
    os.close(_create_file("replaced", at))
    os.rename("newer", "replaced", src_dir_fd=at, dst_dir_fd=at)


def _syncs(at: int) -> None:
    os.fsync(at)


def _keeps_case(at: int) -> None:
    os.close(_create_file("Upper", at))
    os.close(_create_file("upper", at))


def _locks(at: int) -> None:
    opened = _create_file("locked", at)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(opened)


def _create_file(name: str, at: int) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)


class Ability(Enum):
    """An ability of a file system: its description, and a test that runs in an open folder with a file named `file`."""

    PRIVATE = ("keep files from other accounts", _is_private)
    LINK = ("make hard links", _links)
    REPLACE = ("replace a file by a rename", _replaces)
    SYNC = ("sync a folder", _syncs)
    CASE = ("tell upper and lower case apart", _keeps_case)
    LOCK = ("lock a file", _locks)

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def trial(self) -> Callable[[int], None]:
        return self.value[1]


REPOSITORY = frozenset(Ability)
"""Abilities that the folder of a repository needs."""
NEW_FILE = frozenset({Ability.PRIVATE, Ability.LINK})
"""Abilities that a folder needs so that new files appear complete and never replace other files."""


def lacking(folder: Path, needed: Collection[Ability]) -> dict[Ability, str]:
    """Test the needed abilities. Return the missing abilities, each with the system's error.

    The test removes its files. Raises OSError if no file can be created in the folder.
    """
    trial = tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder)
    lacks: dict[Ability, str] = {}
    try:
        at = os.open(trial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.close(_create_file("file", at))
            for ability in Ability:
                if ability in needed:
                    try:
                        ability.trial(at)
                    except OSError as error:
                        lacks[ability] = error.strerror or str(error)
        finally:
            os.close(at)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(trial)
    return lacks


def refuse_unfit(folder: Path, needed: Collection[Ability], hint: str) -> None:
    """Raise PreflightError if the file system of the folder lacks a needed ability.

    Raises OSError in the same cases as `lacking`.
    """
    lacks = lacking(folder, needed)
    if lacks:
        words = "; ".join(f"{ability.words} ({said})" for ability, said in lacks.items())
        raise PreflightError(f"the file system of {folder} cannot {words}", hint=hint)
