"""The only clocks of the jobs, and the ids derived from them."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.base.domain_types import new_backup_id


def now() -> datetime:
    """Return the current time in UTC. The jobs read no other clock."""
    return datetime.now(UTC)


def steady() -> tuple[str, float] | None:
    """Return the boot id and the seconds of its steady clock; None if the kernel does not provide them.

    The clock counts while the host is suspended, and cannot be set (clock_gettime(2), CLOCK_BOOTTIME).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:
        return None


def backup_id_at(moment: datetime) -> str:
    """Return a new backup id for that time."""
    return new_backup_id(moment, secrets.randbits(16))
