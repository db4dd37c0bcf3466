"""The ZFS user properties that say what a clone is.

All are set locally on its anchor; each dataset below carries its name and role.

A clone is an anchor, a dataset that holds no files, and below it one revision of its volumes: `r1`, after a reset `r2`.
The anchor names the revision that counts, so that putting one in place of another is the change of one property.
"""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.model import PROPERTY
from zsnapdb.zfs.owned import Mark

CLONE_PROPERTY = f"{PROPERTY}:clone"
ROLE_PROPERTY = f"{PROPERTY}:role"
PORT_PROPERTY = f"{PROPERTY}:port"
BIND_PROPERTY = f"{PROPERTY}:bind"
CREATED_PROPERTY = f"{PROPERTY}:created"
FLAVOUR_PROPERTY = f"{PROPERTY}:flavour"
ROOT_PROPERTY = f"{PROPERTY}:root"
PHASE_PROPERTY = f"{PROPERTY}:phase"
REVISION_PROPERTY = f"{PROPERTY}:revision"
SOURCE_PROPERTY = f"{PROPERTY}:source"
SERVER_ID_PROPERTY = f"{PROPERTY}:server-id"
OWNER_PROPERTY = f"{PROPERTY}:owner"
EXPIRES_PROPERTY = f"{PROPERTY}:expires"
PROTECTED_PROPERTY = f"{PROPERTY}:protected"
PROFILE_PROPERTY = f"{PROPERTY}:profile"
USED_PROPERTY = f"{PROPERTY}:used"
COMMIT_PROPERTY = f"{PROPERTY}:commit"
MESSAGE_PROPERTY = f"{PROPERTY}:message"
KEPT_PROPERTY = f"{PROPERTY}:kept"
"""On a dataset that is kept for clones to come (received from the repository, or prepared): of which set it is."""

FOLLOWS_PROPERTY = f"{PROPERTY}:follows"
"""On the anchor of a set's replica: the port of the clone it replicates from."""
MASK_PROPERTY = f"{PROPERTY}:mask"
"""On the anchor: `yes` if whoever made the clone wants it masked, at every first start of new files."""
MASKED_PROPERTY = f"{PROPERTY}:masked"
"""On every volume of a masked clone, set once masking is complete: when that was.

Snapshots of it have it from there.
"""


def clone_mark(name: str) -> Mark:
    """Return the mark of every dataset and snapshot of the clone."""
    return Mark(CLONE_PROPERTY, name)


class ClonePhase(StrEnum):
    """How far a clone is.

    making: being made, or its maker died; new: its files are there and its server has not been started yet; ready:
    started once and found separate from its source; changing: being reset or detached, or that was cut short, its files
    being as before; destroying: being destroyed.
    """

    MAKING = "making"
    NEW = "new"
    READY = "ready"
    CHANGING = "changing"
    DESTROYING = "destroying"


HALF_MADE = (ClonePhase.MAKING, ClonePhase.DESTROYING)
"""Phases a clone is in only while somebody works on it; without that it is a leak, and nobody's data."""
