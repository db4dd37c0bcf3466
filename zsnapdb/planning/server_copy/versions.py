"""Whether a server program may be started on another server's files. Pure."""

from __future__ import annotations

from zsnapdb.model import Flavour
from zsnapdb.planning.facts import release_of
from zsnapdb.planning.family import family, flavour_in


def objection_to(flavour: Flavour, recorded: str, program: str) -> str | None:
    """Return why a program of version `program` must not be started on files of version `recorded`; None if it may.

    Crash recovery is only sure within a series, and no server starts on files a newer one wrote (refman 8.4,
    "Downgrading"; MariaDB manual, "Downgrading between Major Versions").
    """
    if flavour_in(program) is not flavour:
        return f"it is {family(flavour_in(program)).title}, the backup is of {flavour}"
    old, new = release_of(recorded), release_of(program)
    if old[:2] != new[:2]:
        return f"it is of another series ({program}) than the backup's server ({recorded})"
    if new < old:
        return f"it is older ({program}) than the backup's server ({recorded})"
    return None
