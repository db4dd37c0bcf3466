"""The tuned properties of a dataset, which backups record and which restored datasets and clones get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def volume_facts(places: Iterable[str]) -> dict[str, TunedVolume]:
    """Return what a manifest records of each dataset. One command reads them."""
    read = datasets.properties_of(sorted(set(places)), (*KEPT_PROPERTIES, "encryption"))
    return {dataset: _tuned(values) for dataset, values in read.items()}


def _tuned(values: Mapping[str, datasets.Property]) -> TunedVolume:
    kept = {name: values[name].value for name in KEPT_PROPERTIES if values[name].value != datasets.UNSET}
    cipher = values["encryption"].value
    return TunedVolume(kept, None if cipher in ("off", datasets.UNSET) else cipher)
