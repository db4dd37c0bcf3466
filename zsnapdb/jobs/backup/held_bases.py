"""Which snapshots a backup holds as its base although nothing says that they are of a set.

A base that a restore received, or that somebody renamed, may be any of thousands of snapshots. A run that is killed
leaves its hold on it. So its name is noted before it is held, and the next run does not have to look at all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.base.set_properties import BASE_TAG
from zsnapdb.zfs import datasets, holds


def may_hold(instance: Instance, names: Sequence[str], of_sets: Collection[str] = ()) -> list[str]:
    """Return those of the snapshots, by full name, that may be held: what a killed run leaves held is found again.

    That is true of those that were read as `of_sets` of the instance: a name of a set alone does not make it so, as a
    restore receives such names. The others are noted first; if the disk refuses that, they are left out.
    """
    others = [name for name in names if name not in of_sets]
    try:
        if others:
            _write(instance, others)
    except (OSError, PreflightError):
        return [name for name in names if name not in others]
    return list(names)


def release(instance: Instance, places: Collection[str]) -> None:
    """Release the holds of a killed run on snapshots that are of no set. No backup of the instance is running.

    A host without a note may have a hold of an older version on any snapshot of the datasets.
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
        holds.release(holds.held(there, BASE_TAG), BASE_TAG)
    with contextlib.suppress(OSError, PreflightError):
        _write(instance, ())


def _file(instance: Instance) -> Path:
    return instance.host.bases / instance.name


def _write(instance: Instance, names: Sequence[str]) -> None:
    make_private(_file(instance).parent)
    whole_file.replace(_file(instance), "\n".join(names).encode())
