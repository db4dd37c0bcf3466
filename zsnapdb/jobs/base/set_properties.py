"""The ZFS user properties and hold tags of a snapshot set, and what their values mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from zsnapdb.base.model import PROPERTY, SNAPSHOT_PREFIX, is_backup_id
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.snapshots import OwnedSnapshot

BACKUP_PROPERTY = f"{PROPERTY}:backup"


INSTANCE_PROPERTY = f"{PROPERTY}:instance"


POSITION_PROPERTY = f"{PROPERTY}:position"


STATE_PROPERTY = f"{PROPERTY}:state"


LOCK_PROPERTY = f"{PROPERTY}:lock"


GRADE_PROPERTY = f"{PROPERTY}:grade"
"""How consistent the set of a virtual machine is: crash, frozen or quiesced."""


VERSION_PROPERTY = f"{PROPERTY}:version"


RESTORED_PROPERTY = f"{PROPERTY}:restored"
"""On every dataset and step snapshot of a restore: the id of the restore that made it."""


INCARNATION_PROPERTY = f"{PROPERTY}:incarnation"
"""On every volume of a server whose history a restore began: the id of that history."""


RUN_PROPERTY = f"{PROPERTY}:run"
"""The id of the run that made the snapshots."""


REPOSITORY_PROPERTY = f"{PROPERTY}:repository"
"""The id of the repository, set once the backup is stored there."""


TAKEN = "taken"
"""State of a new snapshot set. Its backup is not in the repository yet."""


STORED = "stored"
"""State of a snapshot set whose backup is in the repository."""


LIVE = "live"
"""State of a snapshot set that was made for a clone and is no backup."""


LOCAL = "local"
"""State of a snapshot set that `zsnapdb snapshot` made. It is no backup, and expires by its own rules."""


REPLACED = "replaced"
"""State of the snapshots of datasets that a restore replaced: the last state of the old server. It is no backup."""


BASE_TAG = f"{PROPERTY}:base"
"""Hold tag of a snapshot that is the base of a running backup."""


def snapshot_name(backup_id: str) -> str:
    """Return the short name of a backup's snapshots."""
    return f"{SNAPSHOT_PREFIX}{backup_id}"


MARKS = (BACKUP_PROPERTY, INSTANCE_PROPERTY, STATE_PROPERTY)
"""The user properties of a snapshot set that say whose it is."""


def own_snapshots(
    instance: str, places: Collection[str], more: Sequence[str] = (), only: str | None = None
) -> list[OwnedSnapshot]:
    """Return the snapshots of these datasets that are of sets of the instance, of any state, oldest first.

    One command reads them, with the properties MARKS and `more`. NotThere if a dataset does not exist. `only`: no other
    snapshots than those of the set of this id are listed (None: all).
    """
    named = None if only is None else snapshot_name(only)
    return of_sets(instance, snapshots.owned(places, (*MARKS, *more), named))


def of_sets(instance: str, marked: Iterable[OwnedSnapshot]) -> list[OwnedSnapshot]:
    """Return those of the snapshots, read with MARKS, that are of sets of the instance."""
    # The properties alone prove nothing: snapshots inherit the properties of their dataset, and a restored dataset has
    # some of these. So the name must fit too.
    return [
        one
        for one in marked
        if one.properties[INSTANCE_PROPERTY] == instance
        and is_backup_id(backup_id := one.properties[BACKUP_PROPERTY])
        and one.snapshot.name == snapshot_name(backup_id)
    ]
