"""Reports of this process to systemd."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Report the state to systemd, such as READY=1. If systemd did not start this process, do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # sd_notify(3): an @ marks the abstract namespace, whose names begin with a null byte.
    name = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.sendto(state.encode(), name)
