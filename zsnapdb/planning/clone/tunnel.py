"""A tunnel by ssh from a port of this computer to the server of a clone on another host. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zsnapdb.base.errors import ConsistencyError, UsageError

_VIA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,253}")
"""A host, USER@HOST, or a name in ssh_config(5). ssh takes a word that begins with `-` for an option."""
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.%-]{0,253}|[0-9A-Fa-f:.]{2,45}")
_EVERY = ("*", "::", "0.0.0.0")  # noqa: S104 - it is recognised, and not listened on
_LAST_PORT = 65535
LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Tunnel:
    """A port of this computer, and the host and port that the ssh server connects to for it."""

    via: str
    local_port: int
    host: str
    port: int

    def arguments(self, program: str) -> list[str]:
        """Return the command. It runs no command on the other host, and ends if the port cannot be forwarded."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        forward = f"{LOCAL_HOST}:{self.local_port}:{host}:{self.port}"
        options = ("-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30")
        return [program, "-N", "-T", *options, "-L", forward, "--", self.via]


def tunnel_to(via: str, local_port: int, bind_address: str, port: int) -> Tunnel:
    """Return the tunnel to a server that listens at this address of the host `via`.

    Raises:
        UsageError: `via` is no host, or a port is none
        ConsistencyError: the address is none
    """
    if _VIA.fullmatch(via) is None:
        raise UsageError(f"{via!r} is not an SSH host", hint="give HOST, USER@HOST, or a name of ~/.ssh/config")
    for number in (local_port, port):
        if not 0 < number <= _LAST_PORT:
            raise UsageError(f"{number} is not a port", hint=f"give a number from 1 to {_LAST_PORT}")
    host = LOCAL_HOST if bind_address in _EVERY else bind_address
    if _ADDRESS.fullmatch(host) is None:
        raise ConsistencyError("the service names no address of the clone", hint="give the port with --port")
    return Tunnel(via, local_port, host, port)
