"""Whether a process that is started now would load the code that this process has loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GRAIN = 2.0
"""How many seconds the clock of a file system may be behind that of the process."""

_Stamp = tuple[int, int, int, int]


class LoadedCode:
    """The files of the modules, libraries and interpreter that a process has loaded, as they were when it loaded them.

    The time of a file's last change (ctime) is set by the kernel with every write, rename and link.
    """

    def __init__(self, began: float) -> None:
        """Begin, at this time (time.time()). Afterwards the modules are imported."""
        self._began = began
        self._stamps: dict[str, _Stamp | None] = {}
        self._is_mixed = False

    def finish(self) -> None:
        """Note what is loaded. A file that was changed meanwhile may have been loaded as it was before, or after."""
        self._stamps = {path: _stamp(path) for path in sorted(_of_modules() | _mapped())}
        begun = int((self._began - GRAIN) * 1e9)
        self._is_mixed = any(stamp is None or stamp[3] >= begun for stamp in self._stamps.values())

    def has_changed(self) -> bool:
        """Whether a file is another one than the one that was loaded, or may be."""
        return self._is_mixed or any(_stamp(path) != stamp for path, stamp in self._stamps.items())


def _of_modules() -> set[str]:
    """Return the source files of the modules."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if isinstance(file, str)}


def _mapped() -> set[str]:
    """Return the files that are mapped: the interpreter and the libraries. Source: proc_pid_maps(5)."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {words[5] for words in lines if len(words) == 6 and words[5].startswith("/")}


def _stamp(path: str) -> _Stamp | None:
    """Return what identifies the content of a file; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
