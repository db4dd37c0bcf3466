"""The fixed ports of clones. HAProxy forwards each fixed port to the present server of its clone.

Dataset properties record each clone's fixed port and the target of that port. HAProxy is changed only under the lock of
names and ports, after these properties were read. If a run dies after it changed a clone but before it changed HAProxy,
the next call of `follow` repairs the route.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.errors import ConfigError, PreflightError, ZsnapdbError
from zsnapdb.config.services import AddressSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, told
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import catalogue, haproxy_socket, locks
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneInfo
from zsnapdb.planning.clone import kept_ports
from zsnapdb.planning.clone.kept_ports import KeptRoute


def settings_of(settings: Settings) -> AddressSettings:
    """Return the settings `clones.address`, which configure fixed ports.

    Raises:
        ConfigError: `clones.address` is not configured.
    """
    if settings.clones.address is None:
        raise ConfigError("permanent ports for clones are not configured", hint="add a section [clones.address]")
    return settings.clones.address


def choose(settings: Settings, clones: Iterable[CloneClaim], bind_address: str) -> int | None:
    """Return the fixed port for a new clone; None if the clone gets no fixed port.

    The caller must hold the lock of names and ports. HAProxy listens only at `clones.bind_address`, so a clone with
    another address gets no fixed port. A clone also gets none if all configured ports are in use.
    """
    configured = settings.clones.address
    if configured is None or bind_address != settings.clones.bind_address:
        return None
    taken = {claim.kept_port for claim in clones if claim.kept_port is not None}
    return kept_ports.choose(configured.ports, {*taken, *settings.clones.reserved_ports})


def route_of(info: CloneInfo) -> KeptRoute:
    """Return the address to which HAProxy must forward the fixed port of the clone."""
    return KeptRoute(info.host, info.port)


def route_port(settings: Settings, info: CloneInfo, events: Events) -> CloneInfo:
    """Forward the fixed port of the clone to its server, and end all earlier sessions of the port.

    The caller must hold the lock of names and ports. If HAProxy does not accept the route, this function only warns.
    Return the clone with the new value of `is_led_to`.
    """
    configured = settings.clones.address
    if configured is None or info.kept_port is None:
        return info
    try:
        haproxy_socket.lead_port(configured, info.kept_port, route_of(info))
    except ZsnapdbError as error:
        reason = told(error)
        events.warn(f"clone {info.label} is reached at port {info.port} of its server: {reason}")
        return replace(info, is_led_to=False)
    return replace(info, is_led_to=True)


def open_to(settings: Settings, info: CloneInfo, events: Events) -> CloneInfo:
    """Call `route_port` unless HAProxy already forwards the fixed port to the server.

    The caller must hold the clone's lock.
    """
    if info.kept_port is None or info.is_led_to:
        return info
    with locks.names_and_ports():
        return route_port(settings, info, events)


def close(settings: Settings, host: Host, info: CloneInfo) -> None:
    """Remove the route of a destroyed clone from HAProxy, if HAProxy has one."""
    if settings.clones.address is not None and info.is_led_to:
        follow_if_there(settings, host)


@dataclass(frozen=True)
class KeptPort:
    """The fixed port of a clone, or another port for which HAProxy has a route.

    `clone` is None if the port belongs to no clone. `seen` is the present route in HAProxy. `is_listened_at` says
    whether HAProxy listens at the port. HAProxy might not listen there if its configuration file is older than
    zsnapdb's settings.
    """

    port: int
    clone: CloneInfo | None
    seen: KeptRoute | None
    is_listened_at: bool

    @property
    def wanted(self) -> KeptRoute | None:
        """The route that the port should have in HAProxy; None if the port must have no route."""
        return route_of(self.clone) if self.clone is not None else None

    @property
    def is_right(self) -> bool:
        return self.seen == self.wanted


@dataclass(frozen=True)
class KeptPorts:
    """The fixed ports and the ports with a route in HAProxy, and the error if HAProxy could not be queried."""

    ports: tuple[KeptPort, ...]
    error: ZsnapdbError | None = None

    @property
    def wrong(self) -> tuple[KeptPort, ...]:
        """The ports whose route in HAProxy is wrong."""
        return tuple(port for port in self.ports if not port.is_right)


def look(settings: Settings, host: Host) -> KeptPorts:
    """Return the fixed ports of all clones, and the ports for which HAProxy has a route.

    Raises:
        ConfigError: `clones.address` is not configured.
    """
    configured, error = settings_of(settings), None
    of_port = {info.kept_port: info for info in catalogue.listing(settings, host) if info.kept_port is not None}
    try:
        seen = haproxy_socket.routes(configured)
    except ZsnapdbError as failed:
        seen, error = {}, failed
    used = {*of_port, *(port for port, route in seen.items() if route is not None)}
    ports = (KeptPort(port, of_port.get(port), seen.get(port), port in seen) for port in sorted(used))
    return KeptPorts(tuple(ports), error)


def follow(settings: Settings, host: Host) -> tuple[KeptPort, ...]:
    """Correct the routes of all ports, and return the ports whose route was wrong.

    A port at which HAProxy does not listen is returned too, but its route is not changed.

    Raises:
        ConfigError: `clones.address` is not configured.
        PreflightError: HAProxy does not answer or refuses a route.
    """
    configured = settings_of(settings)
    with locks.names_and_ports():
        known = look(settings, host)
        if known.error is not None:
            raise known.error
        for kept in known.wrong:
            if kept.is_listened_at:
                haproxy_socket.lead_port(configured, kept.port, kept.wanted)
    return known.wrong


def follow_if_there(settings: Settings, host: Host) -> None:
    """Call `follow` if clones have fixed ports, and ignore its errors. The doctor reports wrong routes."""
    if settings.clones.address is not None:
        with contextlib.suppress(ZsnapdbError):
            follow(settings, host)


def configuration(settings: Settings, host: Host) -> str:
    """Return the configuration of HAProxy with the present route of every fixed port."""
    listed = catalogue.listing(settings, host)
    must = {info.kept_port: route_of(info) for info in listed if info.kept_port is not None}
    return kept_ports.configuration(settings_of(settings), settings.clones.bind_address, must, haproxy_socket.account())


def write_configuration(settings: Settings, host: Host, file: Path) -> None:
    """Replace the file with the configuration of HAProxy.

    Raises:
        PreflightError: the file cannot be written.
    """
    text = configuration(settings, host)
    try:
        files.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise PreflightError(f"writing {file}: {error.strerror}", hint="name a file in a folder that exists") from error
