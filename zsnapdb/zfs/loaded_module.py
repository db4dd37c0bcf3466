"""What the loaded module of ZFS says of itself and its pools in files (Linux). No program is started for it."""

from __future__ import annotations

import re
from pathlib import Path

MODULE = Path("/sys/module/zfs")
"""The folder of the loaded module; its file `version` has, for example, 2.3.9-1."""
POOLS = Path("/proc/spl/kstat/zfs")
"""A folder for each imported pool, with a file `state` (from OpenZFS 2.1 on also `guid`), beside other folders."""
_GUID = re.compile(r"[0-9]{1,20}")


def version() -> str | None:
    """Return the version of the loaded module; None if it is not said here."""
    try:
        return (MODULE / "version").read_text().strip() or None
    except OSError:
        return None


def pools() -> list[str] | None:
    """Return the names of the imported pools, sorted; None if they are not said here."""
    try:
        return sorted(place.name for place in POOLS.iterdir() if (place / "state").is_file()) or None
    except OSError:
        return None


def pool_guid(pool: str) -> int | None:
    """Return the GUID of an imported pool; None if it is not said here."""
    try:
        text = (POOLS / pool / "guid").read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if _GUID.fullmatch(text) else None
