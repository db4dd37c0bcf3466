"""The folders of running guests.

Each guest has one folder, which its owner locks. After the owner has ended, the folder is removed. This module also
waits until the disks of a killed guest are free again.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .host import LabError


def wait_unused(path: Path, seconds: float = 120.0) -> None:
    """Wait until no thread of a killed guest has the file open: its threads end after the kill has returned.

    Without the wait, the next guest finds its disk locked. The thread that writes to the disk may outlive the first
    thread of the process.
    """
    if not path.exists():
        return
    disk = path.stat()
    deadline = time.monotonic() + seconds
    while any(_holds(thread, (disk.st_dev, disk.st_ino)) for thread in glob.iglob("/proc/[0-9]*/task/*/fd")):
        if time.monotonic() > deadline:
            raise LabError(f"{path} is still in use {seconds:.0f} s after its guest was killed")
        time.sleep(0.02)


def _holds(descriptors: str, file: tuple[int, int]) -> bool:
    try:
        for name in os.listdir(descriptors):
            with contextlib.suppress(OSError):
                status = os.stat(f"{descriptors}/{name}")
                if (status.st_dev, status.st_ino) == file:
                    return True
    except OSError:
        return False
    return False


def new_folder(runs: Path, flavour: str) -> tuple[Path, int]:
    """Return a new guest folder and the descriptor with its lock. Abandoned folders are removed first."""
    runs.mkdir(parents=True, exist_ok=True)
    with _alone(runs):
        _sweep(runs)
        folder = Path(tempfile.mkdtemp(prefix=f"{flavour}-", dir=runs))
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, _this_process().encode())
    return folder, lock


def _this_process() -> str:
    """Return this process's id and start time: in another namespace another process can have the same id."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return f"{os.getpid()} {started}\n"


def remove_own(runs: Path) -> None:
    """Remove the folders of this process's guests, which end together with this process."""
    for file in runs.glob("*/lock"):
        with contextlib.suppress(OSError):
            if file.read_text() == _this_process():
                shutil.rmtree(file.parent, ignore_errors=True)


def has_guests(runs: Path) -> bool:
    """Whether a guest of any checkout runs."""
    if not runs.is_dir():
        return False
    with _alone(runs):
        return any(_is_owned(folder) for folder in runs.iterdir())


@contextlib.contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """Keep other processes from creating or removing folders."""
    with (runs.parent / "runs.lock").open("w") as everyone:
        fcntl.flock(everyone, fcntl.LOCK_EX)
        yield


def _sweep(runs: Path) -> None:
    """Remove the folders of guests whose owner was killed."""
    for folder in runs.iterdir():
        if (folder / "lock").exists() and not _is_owned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_owned(folder: Path) -> bool:
    """Whether a running process holds the lock of a guest's folder."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
