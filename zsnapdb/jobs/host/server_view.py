"""Whether a server sees its folders where this host has them: device and inode of both decide, no names.

A server in a container reports paths of its own mount namespace. On this host they may lead to nothing, or to the files
of another server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from zsnapdb.mysql.process.discovery import is_server_program
from zsnapdb.mysql.process.paths import BASENAMES, DIRECTORIES
from zsnapdb.planning.backup.server_view import OtherView
from zsnapdb.zfs import mounts


def other_view(variables: Mapping[str, str], peer: int | None, proc: Path = Path("/proc")) -> OtherView | None:
    """Return a folder that the server with these variables has elsewhere than this host; None if there is none.

    `peer` is the process at the other end of the connection, as the kernel says it (None: not known, as with TCP); it
    counts if it runs a server program. Else the servers that this host sees are compared. Only root sees all of them.
    """
    datadir = variables["datadir"].rstrip("/")
    if peer is not None and is_server_program(proc / str(peer)):
        pid: int | None = peer
    else:
        pid = _by_folder(datadir, proc, is_ours=variables.get("hostname") == os.uname().nodename)
    if pid is None:
        return None
    for setting, path, theirs in _folders({**variables, "datadir": datadir}, proc / str(pid)):
        if _identity(theirs) is not None and _identity(theirs) != _identity(Path(path)):
            return OtherView(setting, path, pid, _place_here(theirs, path))
    return None


def _folders(variables: Mapping[str, str], process: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield setting, path, and the folder as the process sees it. A server changes into its data directory."""
    yield "datadir", variables["datadir"], process / "cwd"
    named = [(name, variables.get(name, "")) for name in DIRECTORIES if name != "datadir"]
    named += [(name, os.path.dirname(variables.get(name, ""))) for name in BASENAMES]
    for name, path in named:
        if path.startswith("/"):
            yield name, path, process / "root" / path.lstrip("/")


def _by_folder(datadir: str, proc: Path, *, is_ours: bool) -> int | None:
    """Return the process of a server that has this data directory by its own paths, and not by those of this host.

    `is_ours`: the server says that its host has our name. Then one that has the folder by our paths is the server.
    """
    here = _identity(Path(datadir))
    others = []
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()):
        process = proc / str(pid)
        theirs = _identity(process / "cwd") if is_server_program(process) else None
        if theirs is None:
            continue
        if theirs == here:
            if is_ours:
                return None
        elif theirs == _identity(process / "root" / datadir.lstrip("/")):
            others.append(pid)
    return others[0] if others else None


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _place_here(theirs: Path, path: str) -> str:
    """Return the path of the folder on this host, "" if no mount shows it at the end of the server's own path."""
    wanted = _identity(theirs)
    if wanted is None:
        return ""
    device = f"{os.major(wanted[0])}:{os.minor(wanted[0])}"
    parts = Path(path).parts[1:]
    places = (
        Path(entry.path, *parts[len(parts) - count :])
        for entry in mounts.mounted()
        if entry.device == device
        for count in range(len(parts) + 1)
    )
    return next((str(place) for place in places if _identity(place) == wanted), "")
