"""Whether a reset can give a clone's user another clone that waits in the pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SwapSide:
    """What must be the same of a clone and of the one that takes its place.

    `data` is the id of the snapshot set that the clone was created from, `rules` the digest of the rules by which it
    must be masked now ("": it need not be).
    """

    data: str
    rules: str
    profile: str
    bind_address: str


@dataclass(frozen=True)
class SwapCase:
    """What is known of a clone that is to be swapped: the port that it keeps, and whether HAProxy listens at it.

    `has_commits`: it has branches or snapshots, which would go with its data.
    """

    has_pool: bool
    address: int | None
    is_listened_at: bool
    is_of_set: bool
    has_commits: bool


def clone_objection(case: SwapCase) -> str | None:
    """Return why the clone cannot be swapped for any other; None if it can."""
    if not case.has_pool:
        return "its instance has no pool"
    if case.address is None:
        return "it keeps no port"
    if not case.is_listened_at:
        return f"HAProxy does not listen at its port {case.address}"
    if case.is_of_set:
        return "it is one of a set"
    if case.has_commits:
        return "it has commits, branches or other snapshots"
    return None


def slot_objection(wanted: SwapSide, slot: SwapSide, *, runs: bool) -> str | None:
    """Return why this clone of the pool cannot take the place; None if it can."""
    if not runs:
        return "its server does not run"
    if slot.data != wanted.data:
        return f"its data is that of {slot.data}, not of {wanted.data}"
    if slot.rules != wanted.rules:
        return "it was not masked by the rules of now"
    if (slot.profile, slot.bind_address) != (wanted.profile, wanted.bind_address):
        return "it has another profile or address"
    return None
