"""Zvols and their device nodes. The dataset is read from the device node itself, because links can be wrong.

udev creates the links below /dev/zvol in the background. A link may be late or missing, or point to another zvol
(OpenZFS issues 12507, 10603, 12484 and 15904).
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import ConsistencyError, PreflightError
from zsnapdb.zfs.command import ZFS, run, set_options
from zsnapdb.zfs.datasets import UNSET, properties_of

LINKS = Path("/dev/zvol")
_NAME_BYTES = 256
_BLKZNAME = (2 << 30) | (_NAME_BYTES << 16) | (0x12 << 8) | 125
"""_IOR(0x12, 125, char[ZFS_MAX_DATASET_NAME_LEN]), which returns the dataset's name (OpenZFS, include/sys/fs/zfs.h)."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Zvol:
    """A zvol: its size, block size, reservation and used space in bytes, its mode, and its origin snapshot."""

    dataset: str
    size: int
    block_size: int
    reserved: int
    used: int
    mode: str
    origin: str


def describe(names: list[str]) -> dict[str, Zvol]:
    """Return the zvols with the given names.

    Raises PreflightError if a dataset is not a zvol, and NotFound if it does not exist.
    """
    keys = ["type", "volsize", "volblocksize", "refreservation", "used", "volmode", "origin"]
    zvols = {}
    for name, values in (properties_of(names, keys) if names else {}).items():
        if values["type"].value != "volume":
            raise PreflightError(f"{name} is a {values['type'].value}, not a volume", hint="name a zvol")
        reserved, origin = values["refreservation"].value, values["origin"].value
        zvols[name] = Zvol(
            dataset=name,
            size=int(values["volsize"].value),
            block_size=int(values["volblocksize"].value),
            reserved=int(reserved) if reserved.isdecimal() else 0,
            used=int(values["used"].value),
            mode=values["volmode"].value,
            origin="" if origin == UNSET else origin,
        )
    return zvols


def create(dataset: str, size: int, options: Mapping[str, str]) -> None:
    """Create a thin zvol (-s: it reserves no space) of this size in bytes. Raises ExistsError if the zvol exists."""
    run([ZFS, "create", "-s", *set_options(options), "-V", str(size), dataset])


def link_of(dataset: str) -> Path:
    """Return the link through which programs open the zvol's device."""
    return LINKS / dataset


def dataset_behind(path: Path) -> str | None:
    """Return the dataset of a block device; None if the device does not exist or is not a zvol.

    The kernel returns the dataset through the ioctl BLKZNAME, which zvol_id(1) also uses.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISBLK(os.fstat(opened).st_mode):
            return None
        answer = bytearray(_NAME_BYTES)
        fcntl.ioctl(opened, _BLKZNAME, answer)
    except OSError:
        return None
    finally:
        os.close(opened)
    return bytes(answer).partition(b"\0")[0].decode(errors="replace")


def is_partition(path: Path) -> bool:
    """Whether the path is a partition instead of a whole block device (sysfs, `partition`)."""
    try:
        number = os.stat(path).st_rdev
    except OSError:
        return False
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/partition").exists()


def wait_for_device(dataset: str, patience: float) -> Path:
    """Return the link of the zvol's device as soon as the link points to a device of this dataset.

    If this takes longer than `patience` seconds, raises ConsistencyError with the link's actual target.
    """
    link, deadline = link_of(dataset), time.monotonic() + patience
    while True:
        behind = dataset_behind(link)
        if behind == dataset:
            return link
        if time.monotonic() >= deadline:
            seen = f"it leads to the device of {behind}" if behind else "there is no device of a volume behind it"
            raise ConsistencyError(
                f"the device node {link} of the volume {dataset} is not there after {patience:g} s: {seen}",
                hint="see `zfs get volmode,snapdev` and `udevadm settle`; the link is made by udev",
            )
        time.sleep(_POLL_SECONDS)
