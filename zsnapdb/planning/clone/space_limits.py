"""Limits of the space that clones may write, in bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zsnapdb.base.quantities import size
from zsnapdb.planning.server_space import START_BYTES

LEAST = START_BYTES
"""The minimum space of a clone in bytes. Its server needs this space to start."""

COMPARED = 1 << 30
"""The space of a clone that is created to compare two states. The clone's server writes only its logs."""


def clone_quota(configured: int, available: int, floor: int) -> int:
    """Return the quota of a new clone in bytes; 0 if no limit is configured.

    The argument `available` is the free space of the pool, and `floor` is the space that must stay free for production.
    """
    return min(configured, max(LEAST, available - floor)) if configured else 0


def form_quota(configured: int, available: int, floor: int) -> int:
    """Return the quota of a prepared set in bytes. It is never more than the free space above the floor.

    The quota of the clones' common parent dataset keeps the floor free, but prepared sets are not below that dataset.
    """
    return clone_quota(configured, available, floor) or home_quota(0, available, floor)


def home_quota(used: int, available: int, floor: int, before: int = 0) -> int:
    """Return the quota in bytes for all clones together: their `used` space plus the free space above the floor.

    The argument `before` is the present quota, or 0. While the pool's free space is below the floor, the quota does not
    grow. Otherwise, each call would let the clones use another `LEAST` bytes of production's space.
    """
    wanted = used + max(LEAST, available - floor)
    return min(wanted, before) if before and available < floor else wanted


def received_quota(plain_bytes: int, ratio: float = 1.0) -> int:
    """Return the quota in bytes of a set that receives streams, or replays binlogs, of `plain_bytes`.

    The argument `ratio` is the pool's compression ratio for such data. The result includes one eighth for metadata and
    for rounding records up to sectors, and `LEAST` bytes for the logs of a server on the set.
    """
    allocated = int(plain_bytes / max(1.0, ratio))
    return allocated + allocated // 8 + LEAST


def objection_to_set(needed: int, free: int, floor: int) -> str | None:
    """Return why a set of `needed` bytes may not be received; None if at least `clones.free_floor` stays free.

    The text does not contain the free space, because that would reveal how much other subjects use.
    """
    if free - needed >= floor:
        return None
    return f"it needs up to {size(needed)}, and the pool would have less free than clones.free_floor, {size(floor)}"


def objection_to_sets_of(owner: str, kept: Mapping[str, int], needed: int, most: int) -> str | None:
    """Return why another set may not be received for this subject; None if it may be received.

    The argument `kept` maps the id of each set of the subject to its size in bytes, including sets that are being
    received. If `most` is 0, there is no limit.
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
    """Return why another set may not be received for any subject; None if it may be received.

    The text reveals nothing about other subjects.

    The argument `bytes_` is the size of all sets of subjects, including the new set. If `most` is 0, there is no limit.
    The argument `receiving` is the number of sets that are being received.
    """
    if most and bytes_ > most:
        return f"the sets received for all subjects would have more than clones.received_total, {size(most)}"
    if receiving >= most_at_once:
        return f"as many sets are being received as clones.receives allows, {most_at_once}"
    return None
