"""The version of OpenZFS, and the features and GUID of a pool."""

from __future__ import annotations

import functools
import re

from zsnapdb.zfs import kernel_facts
from zsnapdb.zfs.command import ZFS, number_in, run


@functools.cache
def userland() -> str:
    """Return the versions of the tools and the module, such as `zfs-2.3.9-1 zfs-kmod-2.3.9-1`. The result is cached."""
    return _printed()


def _printed() -> str:
    return " ".join(run([ZFS, "version"]).split())


def pool_guid(pool: str) -> int:
    """Return the pool's GUID."""
    known = kernel_facts.pool_guid(pool)
    if known is not None:
        return known
    argv = ["zpool", "get", "-H", "-p", "-o", "value", "guid", pool]
    return number_in(run(argv).strip(), argv)


def kernel_release() -> tuple[int, ...]:
    """Return the release of the loaded module as numbers, for example (2, 3, 9).

    The result is empty if the release is unknown.
    """
    text = kernel_facts.version()
    return release_in(_printed() if text is None else f"zfs-kmod-{text}")


_FEATURES = {
    16: "embedded_data",
    17: "lz4_compress",
    19: "large_blocks",
    23: "large_dnode",
    24: "encryption",
    25: "zstd_compress",
}
"""Bits in a stream's BEGIN record (zfs_ioctl.h, DMU_BACKUP_FEATURE_*), each with the pool feature that it requires.

See zpool-features(7). Bit 22 (compressed) needs no feature of its own.
"""


def missing_features(pool: str, bits: int) -> list[str]:
    """Return the features that a stream with the given bits needs and that are not enabled on the pool."""
    needed = {f"feature@{name}": name for bit, name in _FEATURES.items() if bits >> bit & 1}
    if not needed:
        return []
    listed = run(["zpool", "get", "-H", "-p", "-o", "property,value", ",".join(needed), pool]).splitlines()
    there = {line.partition("\t")[0] for line in listed if line.partition("\t")[2] in ("enabled", "active")}
    return [name for feature, name in needed.items() if feature not in there]


def release_in(text: str) -> tuple[int, ...]:
    """Return the module's release from the text that `userland` returns; empty if the text contains no release."""
    match = re.search(r"\bzfs-kmod-v?([0-9]{1,9}(?:\.[0-9]{1,9})+)", text)
    return tuple(int(number) for number in match.group(1).split(".")) if match else ()
