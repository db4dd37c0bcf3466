"""Clones that wait for whoever asks first: which of them are good, which go, and how many are made. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.config.pool import LEAST_MEMORY


@dataclass(frozen=True)
class PoolTerms:
    """How many clones wait, how old their data may be (seconds), and what their servers may take (bytes; None: any)."""

    size: int
    max_age: float
    memory: int | None


@dataclass(frozen=True)
class PoolSlot:
    """A clone that waits: of when its data is (UTC), whether its server runs, and what that takes (bytes).

    `rules` is the digest of the rules by which it was masked ("": it was not).
    """

    name: str
    data_of: datetime
    runs: bool
    rules: str
    memory: int = 0


@dataclass(frozen=True)
class PoolPlan:
    """What filling a pool does: the slots that go, each with the reason, and how many are made.

    `short`: why fewer are made than the pool should have ("": as many as it should).
    """

    keeps: tuple[PoolSlot, ...]
    drops: tuple[tuple[PoolSlot, str], ...]
    makes: int
    short: str = ""


def objection(slot: PoolSlot, terms: PoolTerms, rules: str, now: datetime) -> str | None:
    """Return why nobody may have the slot; None if it is good. `rules` are those by which it must be masked now."""
    if not slot.runs:
        return "its server does not run"
    if now - slot.data_of > timedelta(seconds=terms.max_age):
        return f"its data is older than pool.max_age, {format_duration(terms.max_age)}"
    if slot.rules != rules:
        return "it was not masked by the rules of now"
    return None


def filling(
    slots: Sequence[PoolSlot], terms: PoolTerms, rules: str, now: datetime, free: int | None, newest: datetime
) -> PoolPlan:
    """Return what filling the pool does. `free` is the memory that new programs can have, in bytes (None: not known).

    `newest` is of when the set is that new clones would be made of: none are made of one that is too old itself.
    The newest data is kept. The next server is expected to take what the largest one of the pool takes.
    """
    drops = [(slot, reason) for slot in slots if (reason := objection(slot, terms, rules, now)) is not None]
    bad = {slot.name for slot, _ in drops}
    good = sorted((slot for slot in slots if slot.name not in bad), key=lambda slot: slot.data_of, reverse=True)
    drops += [(slot, f"pool.size is {terms.size}") for slot in good[terms.size :]]
    keeps = good[: terms.size]
    wanted = terms.size - len(keeps)
    each = max((slot.memory for slot in keeps), default=0) or LEAST_MEMORY
    used = sum(slot.memory for slot in keeps)
    makes, short = wanted, ""
    if now - newest > timedelta(seconds=terms.max_age):
        age = format_duration(terms.max_age)
        return PoolPlan(tuple(keeps), tuple(drops), 0, f"the newest set is older than pool.max_age, {age}")
    if terms.memory is not None and (fits := max(0, (terms.memory - used) // each)) < makes:
        makes, short = (
            fits,
            f"pool.memory is {size(terms.memory)}, {size(used)} of it are used, a server takes {size(each)}",
        )
    if free is not None and (fits := free // (2 * each)) < makes:
        makes, short = (
            fits,
            f"the host has {size(free)} of free memory, half of which stays free, a server takes {size(each)}",
        )
    return PoolPlan(tuple(keeps), tuple(drops), makes, short)
