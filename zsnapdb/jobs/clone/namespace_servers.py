"""Servers of clones in other namespaces: the kernel shows them even if their files are not visible here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.errors import ServerError
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.mysql.process.discovery import is_server_program
from zsnapdb.zfs import mounts
from zsnapdb.zfs.mounts import ForeignMount, users_of

_FLOCK = struct.Struct("@hhqqi")
"""l_type, l_whence, l_start, l_len and l_pid of struct flock (fcntl(2))."""


def with_servers_elsewhere(clones: Collection[CloneInfo]) -> Iterator[CloneInfo]:
    """Yield the clones. A clone whose server is not visible here gets the namespace of its server, if known."""
    silent = [one for one in clones if one.pid is None and one.phase in (CopyPhase.READY, CopyPhase.CHANGING)]
    there = mounts.mounted_elsewhere({name for one in silent for name in one.volumes.values()}) if silent else []
    for info in clones:
        yield replace(info, elsewhere=_elsewhere(info, there)) if info in silent else info


def refuse_running_elsewhere(info: CloneInfo) -> None:
    """Raise ServerError if a server in another namespace, such as a container, runs on the clone's datasets."""
    there = _elsewhere(info, mounts.mounted_elsewhere(frozenset(info.volumes.values())))
    if there:
        raise ServerError(
            f"the server of clone {info.label} runs {there}",
            hint="run the command in the container in which the clone was started, or end the server there",
        )


def _elsewhere(info: CloneInfo, there: Iterable[ForeignMount]) -> str:
    names = info.volumes.values()
    devices = {os.makedev(*map(int, mount.device.split(":"))) for mount in there if mount.source in names}
    for user in users_of(devices) if devices else ():
        if is_server_program(Path(f"/proc/{user.pid}")):
            return f"as process {user.pid} in another mount namespace"
    # InnoDB locks its system tablespace while it runs (os0file.cc, os_file_lock).
    places = [Path(entry.path) for entry in mounts.mounted() if entry.fstype == "zfs" and entry.source in names]
    return "in another PID namespace" if any(_is_locked(place / "ibdata1") for place in places) else ""


def _is_locked(file: Path) -> bool:
    """Return whether a process in any PID namespace has locked the file. No lock is taken."""
    with contextlib.suppress(OSError, safe_open.UnsafeFileError), safe_open.open_to_read(file) as opened:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(opened.fileno(), fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    return False
