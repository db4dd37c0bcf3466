"""Which OpenZFS this is and which pool."""

from __future__ import annotations

import re

from zsnapdb.zfs.command import ZFS, run


def userland() -> str:
    """Return the version of the user tools and the module, e.g. `zfs-2.3.9-1 zfs-kmod-2.3.9-1`."""
    return " ".join(run([ZFS, "version"]).split())


def pool_guid(pool: str) -> int:
    """Return the pool's GUID."""
    return int(run(["zpool", "get", "-H", "-p", "-o", "value", "guid", pool]).strip())


def kernel_release() -> tuple[int, ...]:
    """Return the release of the loaded module as numbers, e.g. (2, 3, 9); empty if it does not say."""
    for word in run([ZFS, "version"]).split():
        match = re.match(r"zfs-kmod-v?(\d+(?:\.\d+)+)", word)
        if match:
            return tuple(int(number) for number in match.group(1).split("."))
    return ()
