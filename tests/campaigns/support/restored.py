"""Removal of a campaign's restored servers."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

from zsnapdb.zfs.command import run_when_free

TARGET = "tank/campaign"


def end(pid: int) -> None:
    """Kill a server that is not a child of this process, and wait for its end."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def remove(pid: int | None) -> None:
    """End the restored server and remove the target's datasets, their snapshots, and the journals of restores."""
    if pid is not None:
        end(pid)
    for journal in Path("/var/lib/zsnapdb/restores").glob("*.json"):
        journal.unlink()
    for dataset in (f"{TARGET}/data", TARGET):
        listed = subprocess.run(
            ["zfs", "list", "-H", "-d", "1", "-t", "snapshot", "-o", "name", dataset], capture_output=True, text=True
        )
        for name in listed.stdout.split():
            run_when_free(["zfs", "destroy", name])
        if listed.returncode == 0:
            run_when_free(["zfs", "destroy", dataset])
    shutil.rmtree(f"/var/lib/zsnapdb/restored/{Path(TARGET).name}", ignore_errors=True)
