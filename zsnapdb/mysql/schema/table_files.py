"""The states of the files of user schemas in a data directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zsnapdb.planning.clone.changed_files import FileState

_SYSTEM_FOLDERS = ("mysql", "sys", "performance_schema")


def states(datadir: Path) -> dict[str, FileState]:
    """Return the state of each file in the folders of user schemas, by `folder/name`."""
    states_by_name = {}
    for folder in os.scandir(datadir):
        if not folder.is_dir(follow_symlinks=False) or folder.name in _SYSTEM_FOLDERS or folder.name[0] in ".#":
            continue
        for file in os.scandir(folder.path):
            status = file.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                states_by_name[f"{folder.name}/{file.name}"] = FileState(
                    status.st_size, status.st_mtime_ns, status.st_ino
                )
    return states_by_name
