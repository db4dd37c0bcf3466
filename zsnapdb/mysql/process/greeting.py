"""The greeting of a server: what it sends to whoever connects, before anybody logs in.

Who answers on the address of a machine is not known, so the bytes are untrusted: at most one short packet is read, and
it is read by its form alone (client/server protocol, "Protocol::HandshakeV10" and "ERR_Packet").
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass

_LONGEST = 2048
_HEADER = 4
_PROTOCOL, _ERROR = 10, 0xFF
_VERSION = re.compile(rb"[\x20-\x7e]{1,80}")
"""A version may have spaces: that of Debian is `11.8.6-MariaDB-0+deb13u1 from Debian-log`."""


@dataclass(frozen=True)
class ServerGreeting:
    """A server greeted: with its version, or with an error (`refusal`, a number) that it sends instead of one."""

    version: str = ""
    refusal: int = 0


def read_greeting(packet: bytes) -> ServerGreeting | None:
    """Return the greeting that the bytes begin with; None if they are not the complete greeting of a server.

    An error counts, for example 1130 (this host may not log in) and 1040 (too many connections): a server sent it.
    """
    if len(packet) <= _HEADER or packet[3] != 0:
        return None
    length = int.from_bytes(packet[:3], "little")
    body = packet[_HEADER : _HEADER + length]
    if length > _LONGEST or len(body) < length or length < 3:
        return None
    if body[0] == _ERROR:
        return ServerGreeting(refusal=int.from_bytes(body[1:3], "little"))
    version, separator, _ = body[1:].partition(b"\0")
    if body[0] != _PROTOCOL or not separator or not _VERSION.fullmatch(version):
        return None
    return ServerGreeting(version=version.decode("ascii"))


def greeting_of(address: str, port: int, patience: float) -> ServerGreeting | None:
    """Return the greeting of the server at the address, or None if none came within `patience` seconds.

    No more is read than the longest greeting, and nothing is sent. This host is not asked: a guest may name an address
    that it shares with the host, such as that of a bridge. A server counts a connection without a login as an error of
    the host (max_connect_errors), so the caller does not ask again once a server greeted.
    """
    deadline, got = time.monotonic() + patience, b""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=patience) as connection:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            return None
        while len(got) < _HEADER + _LONGEST:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            more = connection.recv(_HEADER + _LONGEST - len(got))
            got += more
            greeting = read_greeting(got)
            if greeting is not None or not more or time.monotonic() >= deadline:
                return greeting
    return read_greeting(got)
