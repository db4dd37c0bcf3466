"""Decides which clones of a pool are usable, which are removed, and how many are created. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.config.services import LEAST_MEMORY, PoolSettings
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.space_limits import LEAST

LEAST_SPACE = 15 << 20
"""The number of bytes that a newly started clone itself occupies without compression.

Observed with both servers and small buffer pools. With compression, a clone of a prepared set occupied 0.3 MiB, and a
clone that needed crash recovery occupied up to 24 MiB. A prepared set with masking occupies at least as much.
"""


class PoolMark(StrEnum):
    """The state of a clone of a pool: the clone waits for a user, has a user, or can no longer get a user."""

    WAITS = "waits"
    HANDED_OUT = "handed out"
    NOT_GOOD = "not good"
    REPLACED = "replaced"
    """The clone lost its user, because a reset gave the user another clone of the pool."""

    @property
    def is_of_nobody(self) -> bool:
        """Whether the clone has no user. In this case, no user has credentials for it."""
        return self is not PoolMark.HANDED_OUT


@dataclass(frozen=True)
class PoolSlot:
    """A clone of the pool without a user.

    - `data_of`: the time of the clone's data (UTC)
    - `key`: the identity of the source data (empty if unknown)
    - `rules`: the digest of the rules that masked the clone (empty if unmasked)
    - `memory`, `space`: the memory and the pool space of the clone, in bytes
    - `is_protected`: whether an operator protects the clone in order to examine it
    - `is_current`: whether the clone comes from a state in production's present history
    - `is_complete`: unset while the clone is created or destroyed
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
    is_complete: bool = True


@dataclass(frozen=True)
class SlotWish:
    """The slot that a request needs: its data, the digest of its masking rules (or ""), its profile and its address.

    The field `data` is the identity of the data, or its maximum age in seconds. The clone may occupy `quota` bytes of
    its own, including the bytes that it already occupies; 0 means no limit.
    """

    data: str | float
    rules: str
    profile: str
    bind_address: str
    quota: int = 0


@dataclass(frozen=True)
class HostRoom:
    """The host's memory and space for the pool, in bytes. Unknown values are None.

    - `memory`: the memory available to new programs
    - `space`: the bytes that clones may write until only `clones.free_floor` is free
    - `form`: the part of `space` for a prepared set that must be created first; 0 if none is needed
    """

    memory: int | None
    space: int | None
    form: int = 0


@dataclass(frozen=True)
class PoolPlan:
    """The plan for filling a pool: the slots to remove, each with the reason, and the number of new slots.

    If the pool cannot be filled completely, `short` contains the reason; otherwise it is empty.
    """

    keeps: tuple[PoolSlot, ...]
    drops: tuple[tuple[PoolSlot, str], ...]
    makes: int
    short: str = ""


def objection(slot: PoolSlot, wish: SlotWish, now: datetime, time: RemovalTime | None = None) -> str | None:
    """Return why the slot does not meet the request; None if it does.

    The argument `time` is used to detect wrong recorded times of the data.
    """
    if time is not None and time.is_from_future(slot.data_of):
        return "its time is in the future: a clock was wrong"
    if time is not None and time.is_wrong(slot.data_of):
        return "the clock was behind when its data was taken"
    if slot.mark is PoolMark.REPLACED:
        return "a reset gave its user another one"
    if slot.mark is not PoolMark.WAITS:
        return "it was refused when it was to be handed out"
    if not slot.is_complete:
        return "it is being created or destroyed"
    if not slot.runs:
        return "its server does not run"
    if not slot.is_current:
        return "production was rewound, rolled back, replaced or configured otherwise since it was made"
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


def handout_objection(slot: PoolSlot, wish: SlotWish, time: RemovalTime) -> str | None:
    """Return why the slot must not be handed out now; None if it may be handed out.

    A slot of unknown age stays in the pool, but is not handed out.
    """
    reason = objection(slot, wish, time.latest, time)
    if reason is None and not isinstance(wish.data, str) and time.is_age_unknown(slot.data_of):
        return "the age of its data is not known: the clock of this host jumped"
    return reason


def filling(
    slots: Sequence[PoolSlot], terms: PoolSettings, wish: SlotWish, time: RemovalTime, room: HostRoom, newest: datetime
) -> PoolPlan:
    """Return the plan for filling the pool. The argument `slots` is ordered by the time of the data, oldest first.

    The argument `wish` is the default request. The argument `newest` is the time of the set from which new slots would
    be created. If that set is older than `pool.max_age`, no slot is created. If its time is in the future, its age is
    unknown, and no slot is created either. Slots with the newest data and protected slots stay. The expected size of a
    new server is that of the largest server in the pool.
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
    if time.is_from_future(newest):
        why = "the time of the newest set is in the future: a clock was wrong, so its age is not known"
        return PoolPlan(tuple(keeps), tuple(drops), 0, why)
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
    """Return why this host cannot fill the pool to its configured size now, with numbers; None if it can.

    The argument `total_memory` is the memory of the host in bytes, if known. The pool's used space already includes the
    existing slots.
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
