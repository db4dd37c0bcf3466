"""Folders and files of this host that no other account can read, lock or replace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from zsnapdb.base import private_lock
from zsnapdb.base.errors import PreflightError

_HINT = "run zsnapdb as root, or make the folder for its account"


def make_private(folder: Path) -> None:
    """Create the folder and missing parents, and make it accessible only to this account, its owner.

    Raises PreflightError if the folder is a link, belongs to another account, or cannot be created.
    """
    _make(folder, 0o700)


def make_passable(folder: Path) -> None:
    """Create a folder like `make_private`, but let other accounts traverse it to their own files. They cannot list it.

    QEMU opens its NVRAM file under its own account.
    """
    _make(folder, 0o711)


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PreflightError(f"making the folder {folder}: {error.strerror}", hint=_HINT) from error
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise PreflightError(
                f"the folder {folder} belongs to uid {status.st_uid}, and this is uid {os.geteuid()}", hint=_HINT
            )
        if status.st_mode & 0o077 != mode & 0o077:
            os.fchmod(opened, mode)
            if os.fstat(opened).st_mode & 0o077 & ~mode:
                raise PreflightError(
                    f"the file system of {folder} lets other accounts into a folder of mode {mode:04o}",
                    hint="use a file system with the permissions of files, or mount it with umask=077",
                )
    finally:
        os.close(opened)


def lock_file(folder: Path, name: str) -> Path:
    """Return the path of the lock file with that name."""
    return folder / f"{name}.lock"


def open_lock(folder: Path, name: str) -> TextIO:
    """Return the open lock file of that name in a private folder; create both if they are missing.

    Raises PreflightError like `make_private`, or if the lock file is a link.
    """
    make_private(folder)
    path = lock_file(folder, name)
    try:
        opened = private_lock.open_private(path)
    except OSError as error:
        raise PreflightError(f"making the lock file {path}: {error.strerror}", hint=_HINT) from error
    return os.fdopen(opened, "a+", encoding="utf-8", errors="backslashreplace")
