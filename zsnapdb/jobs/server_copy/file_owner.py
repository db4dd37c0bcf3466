"""Gives the files of a copy to the account that runs its server: the numbers of another host mean nothing here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zsnapdb.base import server_files
from zsnapdb.base.server_files import Owner
from zsnapdb.jobs.server_copy.prepare import Copy
from zsnapdb.mysql.process import server


def change_of_owner(recorded: Owner | None, user: str) -> str | None:
    """Return in words to whom the files are given; None if they belong to this account, or if nothing was recorded."""
    if recorded is None:
        return None
    owner = Owner(*server.account(user))
    if recorded == owner:
        return None
    return f"files are given from uid {recorded.uid}, gid {recorded.gid} to {user} (uid {owner.uid}, gid {owner.gid})"


def give_files(copy: Copy, recorded: Owner | None = None) -> int:
    """Give the mounted files of a copy to the account of its server, which does not run. Return how many changed.

    Only what belonged to the account of the source's server is given: `recorded`, or who owns the data directory. The
    data directory is the last, so an interrupted call is known by it and can be repeated.
    """
    owner = Owner(*server.account(copy.settings.user))
    former = recorded or _owner_of(copy.datadir, owner)
    if former is None or former == owner:
        return 0
    places = [Path(place) for _, place in copy.paths.pairs]
    root = Path(os.path.commonpath(places))
    given = sum(
        server_files.give_tree(root, place.relative_to(root).parts, owner, former, copy.datadir) for place in places
    )
    return given + server_files.give_folder(copy.datadir, owner, former)


def _owner_of(datadir: Path, owner: Owner) -> Owner | None:
    """Return who owns the data directory; None if it is root, or has the number of the account here."""
    with server_files.folder(datadir) as at:
        status = os.fstat(at)
    assert stat.S_ISDIR(status.st_mode), "it was opened as a folder"
    return None if status.st_uid in (0, owner.uid) else Owner(status.st_uid, status.st_gid)
