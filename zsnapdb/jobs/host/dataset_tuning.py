"""The tuned properties of a dataset, which backups record and which restored datasets and clones get."""

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
"""Properties that a restored dataset gets. Properties of a host (mountpoint, quota, reservation) are left out."""


def kept_properties(dataset: str) -> dict[str, str]:
    """Return the tuned properties of a dataset or snapshot, which a copy gets too."""
    return {
        name: tuned.value
        for name, tuned in datasets.properties(dataset, KEPT_PROPERTIES).items()
        if tuned.value != datasets.UNSET
    }
