"""Resolves host names within a time limit. Only this module calls the resolver of the C library.

getaddrinfo(3) has no time limit, and can hang if a name server is unreachable or a module of nsswitch.conf(5) hangs. So
a separate thread calls it. Libraries that connect resolve the name a second time, directly after this module.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading

from zsnapdb.base.deadline import remaining

SECONDS = 30.0
"""Time limit in seconds. The C library gives up after this time with three unreachable name servers (resolver(5))."""


def addresses_of(host: str, seconds: float | None = None) -> frozenset[str]:
    """Return the addresses of a host name. For an IP address, the result is the same address.

    The limit is `seconds` (`SECONDS` if it is None), or the remaining time of the thread's exchange, whichever is
    shorter.

    Raises:
        OSError: the name has no address.
        TimeoutError: the resolver does not answer.
    """
    if is_address(host):
        return frozenset({host})
    found: list[frozenset[str]] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            found.append(frozenset(str(answer[4][0]) for answer in socket.getaddrinfo(host, None)))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    limit = remaining(SECONDS if seconds is None else seconds)
    thread = threading.Thread(target=ask, name="resolver", daemon=True)
    thread.start()
    thread.join(limit)
    if failed:
        error = failed[0]
        raise error if isinstance(error, OSError) else OSError(errno.EINVAL, f"{host} is not a host name: {error}")
    if not found:
        raise TimeoutError(errno.ETIMEDOUT, f"the name {host} was not resolved within {limit:.0f} s")
    return found[0]


def is_address(host: str) -> bool:
    """Return whether the text is an IP address, which needs no resolver."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
