"""What is tuned on a dataset, and so is kept by a backup, a restored dataset and a clone."""

from __future__ import annotations

from zsnapdb.zfs import datasets

KEPT_PROPERTIES = (
    "recordsize",
    "compression",
    "atime",
    "xattr",
    "primarycache",
    "logbias",
    "sync",
    "redundant_metadata",
    "checksum",
    "dnodesize",
)
"""Properties that a restored dataset gets back. What belongs to a host (mountpoint, quota, reservation) is left out."""


def kept_properties(dataset: str) -> dict[str, str]:
    """Return what is tuned on a dataset or snapshot and a copy of it keeps."""
    return {
        name: tuned.value
        for name, tuned in datasets.properties(dataset, KEPT_PROPERTIES).items()
        if tuned.value != datasets.UNSET
    }
