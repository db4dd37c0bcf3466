"""The ZFS user properties with all facts about a clone.

A clone is an anchor (a dataset without files) and below it one revision of its volumes: `r1`, after a reset `r2`. All
properties are set locally on the anchor; each dataset below carries the clone's name and its role. The anchor names the
current revision. So one change of a property replaces one revision with another.
"""

from __future__ import annotations

import re

from zsnapdb.base.domain_types import PROPERTY
from zsnapdb.base.errors import UsageError
from zsnapdb.base.patterns import printable
from zsnapdb.zfs.destruction import Mark

CLONE_PROPERTY = f"{PROPERTY}:clone"
LABEL_PROPERTY = f"{PROPERTY}:label"
"""On the anchor: the name of the clone for users. Not set: the name of its dataset, which never changes."""
ROLE_PROPERTY = f"{PROPERTY}:role"
REVISION_PROPERTY = f"{PROPERTY}:revision"
SOURCE_PROPERTY = f"{PROPERTY}:source"
USED_PROPERTY = f"{PROPERTY}:used"
COMMIT_PROPERTY = f"{PROPERTY}:commit"
MESSAGE_PROPERTY = f"{PROPERTY}:message"
PARENT_PROPERTY = f"{PROPERTY}:parent"
"""On a commit: the previous commit on its branch, else the snapshot set from which the clone's data was cloned."""
LOG_END_PROPERTY = f"{PROPERTY}:log-end"
"""On a commit: the end of the clone's binlog at that moment (`LogEnd`)."""
BRANCHES_PROPERTY = f"{PROPERTY}:branches"
"""On the anchor: the branches of the clone and the current one (`Branches`). Not set: the first branch."""
KEPT_PROPERTY = f"{PROPERTY}:kept"
"""On every dataset of a received or prepared set: the id of the set."""

BEGUN_PROPERTY = f"{PROPERTY}:begun"
"""On the anchor: the time when its data was first cloned from an instance; clones of its commits inherit it."""
CAUSER_PROPERTY = f"{PROPERTY}:caused-by"
"""On the anchor of a received set: the subject for whom it was received. Not set: an administrator."""

FOLLOWS_PROPERTY = f"{PROPERTY}:follows"
"""On the anchor of a set's replica: the port of the clone that is its replication source."""
SET_PROPERTY = f"{PROPERTY}:set"
"""On the anchor of a clone in a set: the name of the set and the part of the clone (source, replica, member)."""
SOURCE_PART = "source"
POINT_PROPERTY = f"{PROPERTY}:point"
"""On the anchor of a received set that was reached by replay: the identity of the point (`point_identity`)."""
MASKED_PROPERTY = f"{PROPERTY}:masked"
"""On every volume of a masked clone: the time when masking was complete. On a commit: the same, or `no`."""
NOT_MASKED = "no"
KEY_PROPERTY = f"{PROPERTY}:key"
"""The identity of data (`CloneSource.key`).

On a prepared set and its snapshots: the identity of the set that was prepared. On the anchor of a clone: the identity
of its present data.
"""
HISTORY_PROPERTY = f"{PROPERTY}:history"
"""On the anchor of a clone that waits in a pool: the state of production at its creation (`production_history`)."""
MASKED_BY_PROPERTY = f"{PROPERTY}:masked-by"
"""On the volumes of a masked clone and on its commits: the digest of the rules that masked the data."""
RULES_PROPERTY = f"{PROPERTY}:rules"
"""On a masked prepared set and on its snapshots: the digest of the rules that masked it (`masking.digest`).

Also on the anchor of a clone that waits in a pool.
"""
GROWN_PROPERTY = f"{PROPERTY}:grown"
"""On a revision: the bytes by which its quota grew for data that is no change of its users.

That data is its own copy, or the commits of other clones.
"""
TAKES_OVER_PROPERTY = f"{PROPERTY}:takes-over"
"""On a revision whose quota is larger while it takes over commits:

its former quota, and the bytes of its commits then.
"""
TAKES_NOTHING_OVER = "no"
POOL_PROPERTY = f"{PROPERTY}:pool"
"""On the anchor of a clone that was created for the pool of its instance: its state in the pool (`PoolMark`)."""

OF_DATA = (ROLE_PROPERTY, MASKED_PROPERTY, MASKED_BY_PROPERTY, GROWN_PROPERTY, TAKES_OVER_PROPERTY)
"""On the datasets of a revision. A handout and a swap keep these properties; a reset removes them with its data."""
OF_COMMITS = (COMMIT_PROPERTY, MESSAGE_PROPERTY, PARENT_PROPERTY, LOG_END_PROPERTY)
"""On the snapshots of a commit, which stay. A clone with commits is neither handed out nor swapped."""
OF_SETS = (KEPT_PROPERTY, CAUSER_PROPERTY, POINT_PROPERTY)
"""On received and prepared sets, which are no clones."""

_REQUESTED_CHARACTERS = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def is_clone_name(text: str) -> bool:
    """Return whether a clone may have that name."""
    return _NAME.fullmatch(text) is not None


def refuse_name(text: str) -> None:
    """Raise UsageError if a clone may not have that name."""
    if not is_clone_name(text):
        raise UsageError(f"invalid clone name {text!r}", hint="use at most 32 of: small letters, digits, - and _")


def clone_mark(name: str) -> Mark:
    """Return the mark of every dataset and snapshot of the clone."""
    return Mark(CLONE_PROPERTY, name)


def requested_text(requested: str) -> str:
    """Return the text of a user's request in the form of a property: on one line, and not too long."""
    return printable(" ".join(requested.split()))[:_REQUESTED_CHARACTERS]
