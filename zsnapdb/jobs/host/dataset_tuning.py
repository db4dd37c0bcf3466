"""The tuned properties of a dataset, which backups record and which restored datasets and clones get."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class TunedVolume:
    """What a manifest records of a dataset: its tuned properties, and the cipher of ZFS (None: not encrypted)."""

    properties: dict[str, str]
    encryption: str | None


def volume_facts(dataset: str) -> TunedVolume:
    """Return what a manifest records of a dataset."""
    read = datasets.properties(dataset, (*KEPT_PROPERTIES, "encryption"))
    cipher = read.pop("encryption").value
    return TunedVolume(
        {name: tuned.value for name, tuned in read.items() if tuned.value != datasets.UNSET},
        None if cipher in ("off", datasets.UNSET) else cipher,
    )


def kept_properties(dataset: str) -> dict[str, str]:
    """Return the tuned properties of a dataset or snapshot, which a copy gets too."""
    return {
        name: tuned.value
        for name, tuned in datasets.properties(dataset, KEPT_PROPERTIES).items()
        if tuned.value != datasets.UNSET
    }
