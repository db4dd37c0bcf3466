"""Whether a port of this host can be had."""

from __future__ import annotations

import socket


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address now."""
    with socket.socket() as found:
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
