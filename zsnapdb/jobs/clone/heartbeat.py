"""The heartbeats of clones: after the last heartbeat of its holder, `zsnapdb reap` destroys the clone.

A heartbeat sets the time of a file below /run. A property would cost a transaction group. A reboot ends every holder
and removes these files.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.planning.clone.lease import Heartbeat


def file_of(host: Host, name: str) -> Path:
    """Return the file whose time is that of the clone's newest heartbeat."""
    return host.run / "heartbeats" / name


def beat(host: Host, name: str) -> None:
    """Record a heartbeat of the clone's holder.

    Raises:
        PreflightError: the file cannot be written.
    """
    file = file_of(host, name)
    make_private(file.parent)
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        now = host.latest().timestamp()
        os.utime(file, (now, now), follow_symlinks=False)
    except OSError as error:
        raise PreflightError(
            f"recording the heartbeat in {file}: {error.strerror}", hint="free space in the file system of /run"
        ) from error


def heartbeat(host: Host, name: str, every: int, created: datetime) -> Heartbeat:
    """Return the heartbeat of a clone that was created at `created` and expects one every `every` seconds."""
    last = created
    with contextlib.suppress(OSError):
        last = max(last, datetime.fromtimestamp(os.lstat(file_of(host, name)).st_mtime, UTC))
    return Heartbeat(every, last)


def forget(host: Host, name: str) -> None:
    """Remove the heartbeats of a destroyed clone."""
    with contextlib.suppress(OSError):
        file_of(host, name).unlink(missing_ok=True)
