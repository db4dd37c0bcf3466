"""Queries and commands to the admin socket of HAProxy. Only port numbers are taken from the answers."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
from collections.abc import Sequence

from zsnapdb.base.deadline import TimedSocket, within
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.services import AddressSettings
from zsnapdb.planning.clone.kept_ports import STATE_COMMAND, KeptRoute, KeptRoutes, read_state, switching

_SECONDS = 2.0
"""The time limit in seconds for one request to HAProxy, from the connection to the last byte of the answer."""
_MOST_BYTES = 1 << 20
HINT = "start HAProxy with the configuration that `zsnapdb clone addresses --haproxy FILE` writes"
_ACCOUNT = "haproxy"
"""The account that Debian's package of HAProxy creates."""


def routes(settings: AddressSettings) -> KeptRoutes:
    """Return the routes of all clone ports at which HAProxy listens.

    Raises:
        PreflightError: HAProxy does not answer, or its answer cannot be parsed.
    """
    try:
        return read_state(_ask(settings, (STATE_COMMAND,)), settings.ports)
    except ValueError as error:
        raise PreflightError(
            f"the answer of HAProxy at {settings.socket} is not understood: {error}", hint=HINT
        ) from error


def lead_port(settings: AddressSettings, port: int, route: KeptRoute | None) -> None:
    """Forward the port to `route`, or to no server if `route` is None. End all earlier sessions on the port.

    Raises:
        PreflightError: HAProxy does not listen at the port, or still has another route for the port.
    """
    _ask(settings, switching(port, route))
    seen = routes(settings)
    if port not in seen:
        raise PreflightError(f"HAProxy at {settings.socket} does not listen at port {port}", hint=HINT)
    if seen[port] != route:
        raise PreflightError(
            f"HAProxy at {settings.socket} does not forward port {port} to the configured server", hint=HINT
        )


def account() -> str | None:
    """Return the account to which HAProxy switches after its start; None if this host has no such account."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(_ACCOUNT).pw_name
    return None


def _ask(settings: AddressSettings, commands: Sequence[str]) -> str:
    """Return HAProxy's answer to the commands, in order (HAProxy management guide, chapter 9.3)."""
    place = settings.socket
    try:
        _refuse_foreign(settings)
        with TimedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as opened, within(_SECONDS, most_bytes=_MOST_BYTES):
            opened.connect(str(place))
            opened.sendall((";".join(commands) + "\n").encode())
            with opened.makefile("rb") as answer:
                return answer.read().decode(errors="replace")
    except OSError as error:
        # The exception of a timeout has no error number.
        reason = error.strerror or "no answer"
        raise PreflightError(f"HAProxy does not answer at {place}: {reason}", hint=HINT) from error


def _refuse_foreign(settings: AddressSettings) -> None:
    """Raise PreflightError if an account other than root can replace the socket, and OSError if there is no socket."""
    place = settings.socket
    trusted = (0, os.geteuid())
    above, own = os.stat(place.parent), os.lstat(place)
    if above.st_uid not in trusted or above.st_mode & 0o022 or own.st_uid not in trusted:
        raise PreflightError(
            f"accounts other than root can replace {place}",
            hint=f"make {place.parent} a folder that only root can write",
        )
    if not stat.S_ISSOCK(own.st_mode):
        raise PreflightError(f"{place} is not a socket", hint=HINT)


def routed_ports(settings: AddressSettings | None) -> set[int]:
    """Return all server ports to which HAProxy forwards, including the targets of outdated routes.

    A new server must not get any of these ports.
    """
    return {route.port for route in routes_or_none(settings).values() if route is not None}


def routes_or_none(settings: AddressSettings | None) -> KeptRoutes:
    """Return the routes of HAProxy; empty if HAProxy does not answer, or if clones have no fixed ports."""
    if settings is not None:
        with contextlib.suppress(PreflightError):
            return routes(settings)
    return {}
