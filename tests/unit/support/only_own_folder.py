"""A watch on this process's changes in the file system: a test writes nothing outside its own folder."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
OWN = tuple(f"{Path(folder).resolve()}/" for folder in (tempfile.gettempdir(), "/var/tmp", "/dev", "/proc"))
CACHES = ("__pycache__", ".hypothesis", ".pytest_cache", ".mypy_cache")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
}


class OutsideError(AssertionError):
    """A test changed a file outside its folder."""


def _is_own(path: Any) -> bool:
    if isinstance(path, int) or path is None:
        return True
    text = os.fsdecode(os.fspath(path))
    if not text.startswith("/"):
        # Relative to an open folder or to the working folder, which a test owns.
        return not os.getcwd().startswith(str(CHECKOUT)) or bool(set(CACHES) & set(Path(text).parts)) or "/" not in text
    real = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
    return f"{real}/".startswith(OWN) or bool(set(CACHES) & set(Path(real).parts))


def _watch(event: str, words: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = words
        is_writing = (isinstance(flags, int) and flags & _WRITES) or (isinstance(mode, str) and set(mode) & set("wax+"))
        paths = (path,) if is_writing else ()
    elif event in _CHANGES:
        paths = words[:2] if event in ("os.rename", "os.link") else words[1:2] if event == "os.symlink" else words[:1]
    else:
        return
    is_removal = event in ("os.remove", "os.rmdir")
    for path in paths:
        if not _is_own(path) and not (is_removal and not os.path.lexists(path)):
            raise OutsideError(f"a test changes {path!r} ({event}), which is outside its folder")


def watch() -> None:
    """Raise OutsideError for every outside change in this process from now on."""
    sys.addaudithook(_watch)
