"""The only clock of the jobs, and the ids made from it."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from zsnapdb.model import new_backup_id


def now() -> datetime:
    """Return the time, UTC. The only clock of the jobs."""
    return datetime.now(UTC)


def fresh_backup_id() -> str:
    """Return a new backup id for now."""
    return new_backup_id(now(), secrets.randbits(16))
