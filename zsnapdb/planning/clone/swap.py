"""Whether a reset can give a clone's user another clone that waits in the pool; `pool.py` says of which. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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
