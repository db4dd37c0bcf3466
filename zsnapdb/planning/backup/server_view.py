"""The finding about a server that knows its files by other paths than this host: one in a container. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.planning.backup.fitness import FitnessFinding, unfit


@dataclass(frozen=True)
class OtherView:
    """A folder of a server that is another one at the same path on this host, or is not there at all.

    `setting` names the folder, `path` is the server's name of it, `pid` its process on this host. `here` is the path at
    which this host has the same folder, "" if it has it nowhere.
    """

    setting: str
    path: str
    pid: int
    here: str


def judge(view: OtherView) -> FitnessFinding:
    """Return the finding about the folder: paths that the server reports would lead to other files on this host."""
    place = f"this host has that folder at {view.here}" if view.here else "this host has that folder nowhere"
    detail = (
        f"the server (process {view.pid}) runs in a container or mount namespace with other paths than this host:"
        f" its {view.setting} = {view.path}, and {place}"
    )
    if not view.here:
        return unfit("paths", detail, "keep the server's files on a dataset that this host mounts; see containers.md")
    hint = f"make {view.path} a symbolic link of this host to {view.here}; other ways are in containers.md"
    return unfit("paths", detail, hint)
