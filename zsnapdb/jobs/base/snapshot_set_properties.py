"""The ZFS user properties and hold tags of a snapshot set, and the meaning of their values."""

from __future__ import annotations

from zsnapdb.base.domain_types import PROPERTY, SNAPSHOT_PREFIX, is_backup_id

BACKUP_PROPERTY = f"{PROPERTY}:backup"
INSTANCE_PROPERTY = f"{PROPERTY}:instance"
POSITION_PROPERTY = f"{PROPERTY}:position"
STATE_PROPERTY = f"{PROPERTY}:state"
LOCK_PROPERTY = f"{PROPERTY}:lock"
GRADE_PROPERTY = f"{PROPERTY}:grade"
"""The consistency level of a virtual machine's snapshot set: crash, frozen or quiesced."""
VERSION_PROPERTY = f"{PROPERTY}:version"
RESTORED_PROPERTY = f"{PROPERTY}:restored"
"""The id of a restore, on each dataset and step snapshot of the restore."""
INCARNATION_PROPERTY = f"{PROPERTY}:incarnation"
"""The id of the binlog history. It is on every volume of a server whose history started with a restore."""
RUN_PROPERTY = f"{PROPERTY}:run"
"""The id of the run that created the snapshots."""
REPOSITORY_PROPERTY = f"{PROPERTY}:repository"
"""The id of the repository. It is set once the backup is stored there."""
TAKEN = "taken"
"""State of a new snapshot set. Its backup is not in the repository yet."""
STORED = "stored"
"""State of a snapshot set whose backup is in the repository."""
LIVE = "live"
"""State of a snapshot set that was created for a clone. It is not a backup."""
LOCAL = "local"
"""State of a snapshot set from `zsnapdb snapshot`. It is not a backup, and expires by its own rules."""
REPLACED = "replaced"
"""State of snapshots of the datasets that a restore replaced.

They contain the last data of the old server, and are not a backup.
"""
BASE_TAG = f"{PROPERTY}:base"
"""Hold tag of a snapshot that is the base of a running backup."""


def snapshot_name(backup_id: str) -> str:
    """Return the short name of a backup's snapshots."""
    return f"{SNAPSHOT_PREFIX}{backup_id}"


def set_named(name: str) -> str | None:
    """Return the id of the set whose snapshots have this short name; None if zsnapdb creates no such names."""
    backup_id = name.removeprefix(SNAPSHOT_PREFIX)
    return backup_id if backup_id != name and is_backup_id(backup_id) else None


MARKS = (BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY)
"""The user properties that identify the owner and state of a snapshot set."""
