"""How many bytes clones may write. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zsnapdb.base.quantities import size

LEAST = 64 << 20
"""With less no server starts on a clone: redo logs and undo tablespaces are written anew."""

COMPARED = 1 << 30
"""How much the clone of a state may write on which it is compared with another: its server reads, and has its logs."""


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


def received_quota(plain_bytes: int, ratio: float = 1.0) -> int:
    """Return how many bytes a set may occupy of which streams of `plain_bytes` are received, or binlogs replayed.

    `ratio` is how much the pool compresses such data. An eighth more is for metadata and for records that the pool
    rounds up to its sectors, `LEAST` for the logs of a server that is started on the set.
    """
    allocated = int(plain_bytes / max(1.0, ratio))
    return allocated + allocated // 8 + LEAST


def objection_to_set(needed: int, free: int, floor: int) -> str | None:
    """Return why a set that needs so many bytes may not be received; None if the pool keeps `clones.free_floor`.

    How much is free says what others use, so a subject is not told.
    """
    if free - needed >= floor:
        return None
    return f"it needs up to {size(needed)}, and the pool would have less free than clones.free_floor, {size(floor)}"


def objection_to_sets_of(owner: str, kept: Mapping[str, int], needed: int, most: int) -> str | None:
    """Return why one more set may not be received for this subject; None if it may.

    `kept` are the bytes of each set that was, or is being, received for him, by its id. `most` 0: no limit.
    """
    used = sum(kept.values())
    if not most or used + needed <= most:
        return None
    named = ", ".join(f"{name}: {size(bytes_)}" for name, bytes_ in sorted(kept.items())[:20]) or "none"
    return (
        f"the sets received for {owner} have {size(used)} ({named}), this one needs up to {size(needed)}, and"
        f" clones.received_per_owner is {size(most)}"
    )


def objection_to_sets_of_all(bytes_: int, most: int, receiving: int, most_at_once: int) -> str | None:
    """Return why one more set may not be received for any subject; None if it may. It says nothing of others.

    `bytes_` are those of all sets of subjects with it (`most` 0: no limit), `receiving` how many are being received.
    """
    if most and bytes_ > most:
        return f"the sets received for all subjects would have more than clones.received_total, {size(most)}"
    if receiving >= most_at_once:
        return f"as many sets are being received as clones.receives allows, {most_at_once}"
    return None
