"""The ZFS user properties that every copy has on its anchor: how far it is, whose it is, how long it stays."""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import PROPERTY
from zsnapdb.base.patterns import is_line, printable
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import CloneLease, read_stamp, settled, stamp
from zsnapdb.zfs import datasets

PHASE_PROPERTY = f"{PROPERTY}:phase"
CREATED_PROPERTY = f"{PROPERTY}:created"
OWNER_PROPERTY = f"{PROPERTY}:owner"
EXPIRES_PROPERTY = f"{PROPERTY}:expires"
PROTECTED_PROPERTY = f"{PROPERTY}:protected"
NOT_PROTECTED = "no"
_OWNER_BYTES = 100
_ACCOUNT = "unix:"


class CopyPhase(StrEnum):
    """How far a copy is.

    making: a process makes the copy, or died while it did. new: the files of a clone are complete, its server was never
    started. ready: it is complete and separate from its source. changing: a process resets or detaches the copy, or
    died while it did. destroying: a process destroys the copy, or died while it did.
    """

    MAKING = "making"
    NEW = "new"
    READY = "ready"
    CHANGING = "changing"
    DESTROYING = "destroying"


HALF_MADE = (CopyPhase.MAKING, CopyPhase.DESTROYING)
"""Phases of a copy only while a process works on it. Without such a process the copy is a leak without data."""


def lease_values(lease: CloneLease) -> dict[str, str]:
    """Return the properties that say how long the copy stays."""
    until = NOT_PROTECTED if lease.protected_until is None else stamp(lease.protected_until)
    return {EXPIRES_PROPERTY: stamp(lease.expires), PROTECTED_PROPERTY: until}


def settle_lease(anchor: str, created: str, lease: CloneLease, time: RemovalTime) -> CloneLease:
    """Have the lease of a copy begin now if the clock was ahead when the copy was made. Return its lease."""
    now = settled(lease, read_stamp(created), time)
    if now != lease:
        datasets.set_properties(anchor, {CREATED_PROPERTY: stamp(time.latest), **lease_values(now)})
    return now


def owner_text(owner: str) -> str:
    """Return the owner of a copy, as a property stores it. PreflightError if it is not one short line.

    An owner is a subject: an account of this host (`anna`, or `unix:anna`), or somebody that a service knows, with its
    kind before a colon (`user:anna@example.org`, `ci:shop/web`). No account has a colon in its name (passwd(5)).
    """
    if (
        not owner.strip().removeprefix(_ACCOUNT)
        or len(owner.encode(errors="replace")) > _OWNER_BYTES
        or not is_line(owner)
    ):
        raise PreflightError(
            f"the owner {printable(owner)[:80]!r} is not a name",
            hint=f"give --owner a name of one line with at most {_OWNER_BYTES} bytes",
        )
    return owner.strip().removeprefix(_ACCOUNT)
