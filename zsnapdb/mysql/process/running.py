"""Running servers that were started with an option file of ours: found and ended by facts of the kernel.

A command line is written by the process itself, so it only suggests a process. What proves one is its working
directory, which is the data directory of a running server (mysqld and mariadbd change into it at their start), and the
time of its start, which no later process with the same number has (proc_pid_stat(5), starttime).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_OPTION = b"--defaults-file="
_PATIENCE_MS = 20_000


@dataclass(frozen=True)
class RunningServer:
    """A process that serves files below one of our mount folders.

    `place` is the folder in that mount folder: everything of one restore or clone is mounted at it or below it.
    `started` is in clock ticks since boot.
    """

    pid: int
    started: int
    place: Path
    datadir: Path


def servers_below(roots: Collection[Path], private_folder: str) -> list[RunningServer]:
    """Return the servers whose option file and data directory both lie below the same place in one of the folders.

    `private_folder` is the name of the folder with the option file. Processes that end meanwhile are left out.
    """
    servers = []
    for name in os.listdir("/proc"):
        server = _server(int(name), roots, private_folder) if name.isdigit() else None
        if server is not None:
            servers.append(server)
    return sorted(servers, key=lambda server: server.pid)


def _server(pid: int, roots: Collection[Path], private_folder: str) -> RunningServer | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        files = [Path(os.fsdecode(word[len(_OPTION) :])) for word in words if word.startswith(_OPTION)]
        if not files:
            return None
        datadir = Path(os.readlink(f"/proc/{pid}/cwd"))
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    for file in files:
        for root in roots:
            if file.parent.name != private_folder or ".." in file.parts or not file.is_relative_to(root):
                continue
            place = root / file.relative_to(root).parts[0]
            if datadir.is_relative_to(place):
                return RunningServer(pid, started, place, datadir)
    return None


def end(server: RunningServer, private_folder: str) -> bool:
    """Kill the server and wait until it is gone; only for a copy that is rolled back or removed afterwards.

    Return False, and touch no process, if this very process does not run any more. The kernel's handle of the process
    (pidfd_open(2)) is taken first, so the signal cannot reach a later process with the same number.
    """
    try:
        handle = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return False
    try:
        if _server(server.pid, [server.place.parent], private_folder) != server:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(_PATIENCE_MS))
    finally:
        os.close(handle)
