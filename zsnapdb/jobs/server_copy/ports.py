"""Whether a port of this host is free."""

from __future__ import annotations

import socket


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
