"""Clones that wait for whoever asks first: which of them are good, which go, and how many are made. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.config.clones import LEAST_MEMORY, PoolSettings
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.room import LEAST

LEAST_SPACE = 15 << 20
"""What a clone that was just started has of its own, in bytes, where its files are not compressed.

Seen of both servers with small buffer pools; compressed, 0.3 MiB of a prepared set and up to 24 MiB of one that had to
be recovered. A prepared form takes as much at least, if something is masked.
"""


class PoolMark(StrEnum):
    """Where a clone is that was made for a pool: it waits, or somebody has it, or nobody gets it any more."""

    WAITS = "waits"
    HANDED_OUT = "handed out"
    NOT_GOOD = "not good"
    REPLACED = "replaced"
    """Somebody had it, and got another one of the pool by a reset."""

    @property
    def is_of_nobody(self) -> bool:
        """Whether nobody has a login of the clone."""
        return self is not PoolMark.HANDED_OUT


@dataclass(frozen=True)
class PoolSlot:
    """A clone of the pool that is nobody's: of when its data is (UTC), whether its server runs, what it takes (bytes).

    `key` is the identity of the data that it was made of ("": not known), `rules` the digest of the rules by which it
    was masked ("": it was not). `is_protected`: somebody keeps it from being destroyed, to look at it. `is_current`:
    production is what it was when the slot was made.
    """

    name: str
    data_of: datetime
    key: str
    runs: bool
    rules: str
    profile: str
    bind_address: str
    memory: int = 0
    space: int = 0
    mark: PoolMark = PoolMark.WAITS
    is_protected: bool = False
    is_current: bool = True


@dataclass(frozen=True)
class SlotWish:
    """What a slot must be for somebody: its data, masked by the rules of that digest ("": by none), profile, address.

    `data`: exactly the data of that identity, or not older than so many seconds. `quota`: how many bytes of its own it
    may have, with those that it has (0: there is no limit).
    """

    data: str | float
    rules: str
    profile: str
    bind_address: str
    quota: int = 0


@dataclass(frozen=True)
class HostRoom:
    """What the host has for the pool, in bytes (None: not known).

    `memory`: what new programs can have; `space`: what clones may still write, above `clones.free_floor`. `form`: what
    the prepared form will take of the space that is made first (0: none is).
    """

    memory: int | None
    space: int | None
    form: int = 0


@dataclass(frozen=True)
class PoolPlan:
    """What filling a pool does: the slots that go, each with the reason, and how many are made.

    `short`: why fewer are made than the pool should have ("": as many as it should).
    """

    keeps: tuple[PoolSlot, ...]
    drops: tuple[tuple[PoolSlot, str], ...]
    makes: int
    short: str = ""


def objection(slot: PoolSlot, wish: SlotWish, now: datetime, time: RemovalTime | None = None) -> str | None:
    """Return why the slot is not what is wanted; None if it is. `time` judges whether its time is wrong."""
    if time is not None and time.is_from_future(slot.data_of):
        return "its time is in the future: a clock was wrong"
    if slot.mark is PoolMark.REPLACED:
        return "a reset gave its user another one"
    if slot.mark is not PoolMark.WAITS:
        return "it was refused when it was to be handed out"
    if not slot.runs:
        return "its server does not run"
    if not slot.is_current:
        return "production was rewound, replaced or configured otherwise since it was made"
    if isinstance(wish.data, str):
        if not wish.data or slot.key != wish.data:
            return "its data is that of other snapshots"
    elif now - slot.data_of > timedelta(seconds=wish.data):
        return f"its data is older than pool.max_age, {format_duration(wish.data)}"
    if slot.rules != wish.rules:
        return "it was not masked by the rules of now"
    if (slot.profile, slot.bind_address) != (wish.profile, wish.bind_address):
        return "it has another profile or address"
    if wish.quota and wish.quota < slot.space + LEAST:
        return "it has too much of its own already"
    return None


def filling(
    slots: Sequence[PoolSlot], terms: PoolSettings, wish: SlotWish, time: RemovalTime, room: HostRoom, newest: datetime
) -> PoolPlan:
    """Return what filling the pool does. `slots` are ordered by their data, the oldest first.

    `wish` is what who asks for nothing special gets. `newest` is of when the set is that new clones would be made of:
    none are made of one that is too old itself. The newest data is kept, and what is protected. The next server is
    expected to take what the largest one of the pool takes.
    """
    now = time.at
    refused = [(slot, reason) for slot in slots if (reason := objection(slot, wish, now, time)) is not None]
    bad = {slot.name for slot, _ in refused}
    good = [slot for slot in reversed(slots) if slot.name not in bad]
    refused += [(slot, f"pool.size is {terms.size}") for slot in good[terms.size :]]
    drops = [(slot, reason) for slot, reason in refused if not slot.is_protected]
    keeps = good[: terms.size]
    makes, short = terms.size - len(keeps), ""
    if now - newest > timedelta(seconds=terms.max_age):
        age = format_duration(terms.max_age)
        return PoolPlan(tuple(keeps), tuple(drops), 0, f"the newest set is older than pool.max_age, {age}")
    for fits, reason in _limits(keeps, terms, room):
        if fits < makes:
            makes, short = fits, reason
    return PoolPlan(tuple(keeps), tuple(drops), makes, short)


def _limits(keeps: Sequence[PoolSlot], terms: PoolSettings, room: HostRoom) -> list[tuple[int, str]]:
    limits = []
    each = max((slot.memory for slot in keeps), default=0) or LEAST_MEMORY
    used = sum(slot.memory for slot in keeps)
    if terms.memory is not None:
        text = f"pool.memory is {size(terms.memory)}, {size(used)} of it are used, a server takes {size(each)}"
        limits.append((max(0, (terms.memory - used) // each), text))
    if room.memory is not None:
        text = f"the host has {size(room.memory)} of free memory, half of which stays free, a server takes {size(each)}"
        limits.append((room.memory // (2 * each), text))
    if room.space is not None:
        own = max((slot.space for slot in keeps), default=0) or LEAST_SPACE
        text = (
            f"clones may write {size(room.space)} more, above clones.free_floor, a clone has {size(own)} of its own"
            + (f", and the prepared form of the set {size(room.form)}" if room.form else "")
        )
        limits.append((max(0, room.space - room.form) // own, text))
    return limits


def too_large(slots: Sequence[PoolSlot], terms: PoolSettings, room: HostRoom, total_memory: int | None) -> str | None:
    """Return why a pool of that size cannot be full on this host now, with the figures; None if it can.

    `total_memory`: that of the host in bytes (None: not known). What the pool takes already is not counted twice.
    """
    most = total_memory // 2 if total_memory is not None else None
    if most is not None and terms.size * LEAST_MEMORY > most:
        return (
            f"a pool of {terms.size} needs at least {size(terms.size * LEAST_MEMORY)} of memory, and half of that of"
            f" the host is {size(most)}"
        )
    missing = terms.size - len(slots)
    needed = missing * LEAST_SPACE + room.form
    if room.space is not None and missing > 0 and needed > room.space:
        return (
            f"a pool of {terms.size} needs at least {size(needed)} more of space, and clones may write"
            f" {size(room.space)} more, above clones.free_floor"
        )
    return None
