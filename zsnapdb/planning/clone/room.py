"""How many bytes clones may write. Pure."""

from __future__ import annotations

LEAST = 64 << 20
"""With less no server starts on a clone: redo logs and undo tablespaces are written anew."""


def clone_quota(configured: int, available: int, floor: int) -> int:
    """Return how many bytes of its own a new clone may have (0: no limit is configured).

    `available`: what the pool has free; `floor`: what must stay free for production.
    """
    return min(configured, max(LEAST, available - floor)) if configured else 0


def form_quota(configured: int, available: int, floor: int) -> int:
    """Return how many bytes of its own a prepared form may have that is made for a clone: never more than is free.

    It does not lie below the home of all clones, whose quota would keep the floor free.
    """
    return clone_quota(configured, available, floor) or home_quota(0, available, floor)


def home_quota(used: int, available: int, floor: int) -> int:
    """Return how many bytes all clones together may have: what they `used`, and what is free above the floor."""
    return used + max(LEAST, available - floor)
