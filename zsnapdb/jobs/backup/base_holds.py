"""The record of snapshots that a backup holds as its base although they belong to no set by their properties.

Such a base was received by a restore or renamed, so it can be any of thousands of snapshots. A killed run leaves its
hold on it. So its name is recorded before the hold, and the next run need not look at all snapshots.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from zsnapdb.base import atomic_file
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.base.set_properties import BASE_TAG
from zsnapdb.zfs import datasets, holds


def may_hold(instance: Instance, names: Sequence[str], of_sets: Collection[str] = ()) -> list[str]:
    """Return the snapshots, by full name, that this run may hold: the next run can find and release their holds.

    The next run finds the snapshots in `of_sets`, which were read as sets of the instance. All others are first
    recorded on the disk; if that fails, they are left out. A name like that of a set is no proof, because a restore
    receives such names.
    """
    others = [name for name in names if name not in of_sets]
    try:
        if others:
            _write(instance, others)
    except (OSError, PreflightError):
        return [name for name in names if name not in others]
    return list(names)


def release(instance: Instance, places: Collection[str]) -> None:
    """Release the holds of a killed run on snapshots that belong to no set. No backup of the instance is running.

    Without a record, an older version may have left a hold on any snapshot of the datasets.
    """
    try:
        noted = _file(instance).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        holds.release(holds.held_snapshots(places, BASE_TAG), BASE_TAG)
    else:
        if not noted:
            return
        # The dataset may have another name now.
        short = {name.partition("@")[2] for name in noted}
        there = [name for place in places for one in short if datasets.exists(name := f"{place}@{one}")]
        holds.release(holds.snapshots_with_hold(there, BASE_TAG), BASE_TAG)
    with contextlib.suppress(OSError, PreflightError):
        _write(instance, ())


def _file(instance: Instance) -> Path:
    return instance.host.bases / instance.name


def _write(instance: Instance, names: Sequence[str]) -> None:
    make_private(_file(instance).parent)
    atomic_file.replace(_file(instance), "\n".join(names).encode())
