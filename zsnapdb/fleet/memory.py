"""How much memory this host has for new programs, as the kernel says it."""

from __future__ import annotations

import re
from pathlib import Path

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def available() -> int:
    """Return the bytes that new programs can have without swapping; 0 if it is not known. Source: proc_meminfo(5)."""
    try:
        found = _AVAILABLE.search(Path("/proc/meminfo").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found is not None else 0
