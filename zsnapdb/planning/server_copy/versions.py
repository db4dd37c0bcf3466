"""Whether a server program may be started on another server's files. Pure."""

from __future__ import annotations

from zsnapdb.model import Flavour
from zsnapdb.planning.facts import release_of


def objection_to(flavour: Flavour, recorded: str, program: str) -> str | None:
    """Return why a program of version `program` must not be started on files of version `recorded`; None if it may.

    Crash recovery is only sure within a series, and no server starts on files a newer one wrote (refman 8.4,
    "Downgrading"; MariaDB manual, "Downgrading between Major Versions").
    """
    is_mariadb = "mariadb" in program.lower()
    if is_mariadb is not (flavour is Flavour.MARIADB):
        return f"it is {'MariaDB' if is_mariadb else 'MySQL'}, the backup is of {flavour}"
    old, new = release_of(recorded), release_of(program)
    if old[:2] != new[:2]:
        return f"it is of another series ({program}) than the backup's server ({recorded})"
    if new < old:
        return f"it is older ({program}) than the backup's server ({recorded})"
    return None
