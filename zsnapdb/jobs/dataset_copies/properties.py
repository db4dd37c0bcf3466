"""The ZFS user properties on every copy's anchor. They record the phase, owner and lease of the copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum

from zsnapdb.base.domain_types import PROPERTY
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.patterns import is_line, printable
from zsnapdb.config.settings import Settings
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.lease import FOREVER, CloneLease, LeaseChange, policy, read_stamp, settled, stamp
from zsnapdb.zfs import datasets

PHASE_PROPERTY = f"{PROPERTY}:phase"
CREATED_PROPERTY = f"{PROPERTY}:created"
OWNER_PROPERTY = f"{PROPERTY}:owner"
EXPIRES_PROPERTY = f"{PROPERTY}:expires"
PROTECTED_PROPERTY = f"{PROPERTY}:protected"
CHANGED_PROPERTY = f"{PROPERTY}:lease-before"
"""The last change of the lease: the time of the change, the former ends of the lease, and the extension in seconds."""
NOT_PROTECTED = "no"
NOT_CHANGED = "-"
_OWNER_BYTES = 100
_ACCOUNT = "unix:"


class CopyPhase(StrEnum):
    """The phase of a copy.

    - making: a process is creating the copy, or died before the copy was complete
    - new: the files of a clone are complete, but its server was never started
    - ready: the copy is complete and separate from its source
    - changing: a process is resetting or detaching the copy, or died before it had finished
    - destroying: a process is destroying the copy, or died before it had finished
    """

    MAKING = "making"
    NEW = "new"
    READY = "ready"
    CHANGING = "changing"
    DESTROYING = "destroying"


HALF_MADE = (CopyPhase.MAKING, CopyPhase.DESTROYING)
"""Phases that a copy has only while a process is creating or destroying it.

If that process no longer runs, the copy is a leftover without usable data.
"""


def lease_values(lease: CloneLease) -> dict[str, str]:
    """Return the properties that record the lease."""
    ends = _ends(lease.expires, lease.protected_until)
    change = lease.changed
    before = NOT_CHANGED
    if change is not None:
        extension = () if change.extension is None else (str(change.extension),)
        before = " ".join((stamp(change.at), *_ends(change.expires, change.protected_until), *extension))
    return {EXPIRES_PROPERTY: ends[0], PROTECTED_PROPERTY: ends[1], CHANGED_PROPERTY: before}


def _ends(expires: datetime, protected_until: datetime | None) -> tuple[str, str]:
    return stamp(expires), NOT_PROTECTED if protected_until is None else stamp(protected_until)


def read_lease(expires: str, protected: str, before: str) -> CloneLease:
    """Return the lease that the given properties record. If a time is unreadable, it counts as "never"."""
    at, *ends = before.split(" ")
    change = None
    if 2 <= len(ends) <= 3 and read_stamp(at) != FOREVER:
        extension = int(ends[2]) if len(ends) == 3 and _EXTENSION.fullmatch(ends[2]) else None
        change = LeaseChange(read_stamp(at), read_stamp(ends[0]), _protection(ends[1]), extension)
    return CloneLease(read_stamp(expires), _protection(protected), changed=change)


_EXTENSION = re.compile("[0-9]{1,10}")


def _protection(text: str) -> datetime | None:
    return None if text in (datasets.UNSET, NOT_PROTECTED) else read_stamp(text)


def settle_lease(
    anchor: str,
    created: str,
    lease: CloneLease,
    time: RemovalTime,
    begun: Mapping[str, str] | None = None,
    *,
    act: bool = True,
) -> CloneLease:
    """Return the lease. If the lease began or was changed while the clock was wrong, it begins again now.

    `begun` contains other properties of the copy with a start time. Wrong times are replaced with the present time. The
    corrected times are recorded only if `act` is true.
    """
    now = settled(lease, read_stamp(created), time)
    if act and now != lease:
        times = {CREATED_PROPERTY: created, **(begun or {})}
        wrong = [name for name, at in times.items() if read_stamp(at) != FOREVER and time.is_wrong(read_stamp(at))]
        datasets.set_properties(anchor, {**dict.fromkeys(wrong, stamp(time.latest)), **lease_values(now)})
    return now


def extension(settings: Settings, seconds: float | None, now: datetime) -> Callable[[CloneLease], CloneLease]:
    """Return a function that extends a lease, so that the lease ends `seconds` from now.

    The default for `seconds` is `clones.ttl`. The function never shortens a lease.
    """
    return lambda lease: leases.extended(lease, seconds, policy(settings.clones), now)


def protection(settings: Settings, seconds: float, now: datetime) -> Callable[[CloneLease], CloneLease]:
    """Return a function that protects a copy from the reaper for `seconds`; 0 removes the protection."""
    return lambda lease: leases.protected(lease, seconds, policy(settings.clones), now)


def lease_steps(what: str, before: CloneLease, after: CloneLease) -> tuple[str, ...]:
    """Return the changes of the lease as text for users. `what` is the word for the copy in this text."""
    steps = []
    if after.expires != before.expires:
        steps.append(f"extend the lease to {stamp(after.expires)} instead of {stamp(before.expires)}")
    if after.protected_until is None and before.protected_until is not None:
        steps.append("remove the protection")
    elif after.protected_until is not None and after.protected_until != before.protected_until:
        steps.append(f"protect the {what} until {stamp(after.protected_until)}")
    return tuple(steps)


def owner_text(owner: str) -> str:
    """Return the owner of a copy as the value of a property.

    An owner is a subject: an account of this host (`anna`, or `unix:anna`), or a user of a service, with its kind
    before a colon (`user:anna@example.org`, `ci:shop/web`). The name of an account contains no colon (passwd(5)).

    Raises:
        PreflightError: the owner is too long, or is not a single line.
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
