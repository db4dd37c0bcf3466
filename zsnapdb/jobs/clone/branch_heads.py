"""What the anchor of a clone, and its commits, say of its branches. Changes nothing.

The head of the branch that a clone is on is the newest commit of its current data, by ZFS, else what the anchor has.
So a commit moves it by itself, in the moment of its snapshots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.properties import BRANCHES_PROPERTY
from zsnapdb.jobs.clone.sources import Commit, commits
from zsnapdb.planning.clone.branches import Branches, decode


def newest(info: CloneInfo, made: Sequence[Commit] | None = None) -> Commit | None:
    """Return the newest commit of the data that the clone has now; None if there is none.

    The commit that the data was cloned from is none of them, also if another clone has left it to this one. `made` are
    the commits of that data, oldest first (None: they are read here).
    """
    made = commits(info.current) if made is None else made
    last = made[-1] if made else None
    return last if last is not None and last.set.backup_id != info.backup_id else None


def read(info: CloneInfo, made: Sequence[Commit] | None = None) -> Branches:
    """Return the branches of the clone as they are now. DamagedError if its anchor records something else.

    `made` is as for `newest`.
    """
    try:
        recorded = decode(info.branches) if info.branches else Branches()
    except ValueError as error:
        raise DamagedError(
            f"the property {BRANCHES_PROPERTY} of {info.top} cannot be read: {error}",
            hint="`zsnapdb clone show` lists the commits of the clone; `zfs inherit` of it forgets its branches",
        ) from error
    last = newest(info, made)
    return recorded.with_head(last.set.backup_id) if last is not None else recorded


def parent(info: CloneInfo) -> str:
    """Return what a commit of the clone follows: the newest one of its branch, else the set that its data is of."""
    with contextlib.suppress(DamagedError):
        return read(info).head or info.backup_id
    return info.backup_id


def kept(info: CloneInfo, made: Sequence[Commit] | None = None) -> str:
    """Return the branches as the anchor has to record them before the clone gets other data ("": as it does).

    A reset changes the data and no branch, and a detach changes neither. `made` is as for `newest`.
    """
    with contextlib.suppress(DamagedError):
        known = read(info, made)
        if info.branches or known.head:
            return known.encode()
    return ""
