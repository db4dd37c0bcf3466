"""Atomic replacement of files on this host: a reader sees the old file or the new one, never a partial one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_UNFINISHED = ".new-"


def replace(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace or create the file with this content in an existing folder. The file is durable on return.

    A link at this path is replaced, not followed. OSError if the disk refuses; then the old file stays.
    """
    _replace(file, (content,), mode, is_durable=True)
    sync_folder(file.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files of killed processes from the folder. No process may write there meanwhile."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            left.unlink()


def replace_disposable(file: Path, *parts: bytes | bytearray) -> None:
    """Replace the file as `replace` does, but without waiting for the disk. After a power cut it may have any content.

    It is for files that may be lost and whose readers detect a partial one.
    """
    _replace(file, parts, 0o600, is_durable=False)


def _replace(file: Path, parts: Iterable[bytes | bytearray], mode: int, *, is_durable: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=_UNFINISHED)
    try:
        with open(descriptor, "wb") as out:
            out.writelines(parts)
            out.flush()
            os.fchmod(out.fileno(), mode)
            if is_durable:
                os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed entries of the folder durable. OSError if the disk refuses."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
