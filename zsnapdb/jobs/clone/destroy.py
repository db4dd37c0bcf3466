"""Destroys clones, and what is left of those that came to nothing. Only what carries the clone's name, set locally."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clone.catalogue import CloneInfo, find
from zsnapdb.jobs.clone.marks import CLONE_PROPERTY
from zsnapdb.jobs.common import exclusive
from zsnapdb.jobs.copies import PRIVATE_FOLDER
from zsnapdb.mysql import server
from zsnapdb.zfs import datasets

CLONES_LOCK = "clones"
LOCK_PATIENCE = 60.0


def destroy(settings: Settings, name: str) -> CloneInfo:
    """Stop the clone's server and destroy exactly its datasets. Each must carry its name, set locally, or nothing is destroyed."""
    with exclusive(CLONES_LOCK, doing="making or destroying a clone", patience=LOCK_PATIENCE):
        return _destroy(find(settings, name), name)


def _destroy(info: CloneInfo, name: str) -> CloneInfo:
    for dataset in info.datasets:
        found = datasets.properties(dataset, [CLONE_PROPERTY])[CLONE_PROPERTY]
        if not (found.is_local and found.value == name):
            raise PreflightError(f"{dataset} does not carry the mark of clone {name}", hint="it is not ours to destroy; look at `zfs get all`")
    server.ServerProcess(info.mount / PRIVATE_FOLDER).kill()
    for dataset in reversed(info.datasets):
        datasets.unmount(dataset)
        datasets.destroy(dataset)
    remove_folders(info.mount)
    return info


def remove_folders(root: Path) -> None:
    """Remove the private folder, where it lies beside the datasets and not in one, and the folders they were mounted at."""
    private = root / PRIVATE_FOLDER
    if private.is_dir() and not os.path.ismount(root):
        shutil.rmtree(private, ignore_errors=True)
    for folder in (*(root.iterdir() if root.is_dir() else ()), root):
        # Whatever is not an empty folder stays, and is nobody's loss.
        with contextlib.suppress(OSError):
            folder.rmdir()


def destroy_marked(name: str, made: Iterable[str], root: Path) -> None:
    """Destroy those of the datasets that exist and carry the clone's name, set locally; then the folders it was mounted at."""
    for dataset in sorted(made, key=len, reverse=True):
        if datasets.exists(dataset) and datasets.properties(dataset, [CLONE_PROPERTY])[CLONE_PROPERTY] == datasets.Property(name, "local"):
            datasets.unmount(dataset)
            datasets.destroy(dataset)
    remove_folders(root)
