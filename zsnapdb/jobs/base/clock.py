"""The only clock of the jobs, and the ids made from it."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from zsnapdb.base.model import new_backup_id


def now() -> datetime:
    """Return the current time in UTC. The jobs read no other clock."""
    return datetime.now(UTC)


def fresh_backup_id() -> str:
    """Return a new backup id for now."""
    return new_backup_id(now(), secrets.randbits(16))
