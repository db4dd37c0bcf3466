"""The ports that clones keep: which clone has which, and HAProxy leads each to the server that its clone has now.

ZFS says which port is whose and where it must lead. A port is led elsewhere only under the lock of names and ports, by
what ZFS says then. So a run that died between a change and HAProxy is made good by `follow`, whoever calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from zsnapdb.base import whole_file
from zsnapdb.base.errors import ConfigError, PreflightError, ZsnapdbError
from zsnapdb.config.clones import AddressSettings
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import catalogue, haproxy, locks
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneInfo
from zsnapdb.planning.clone import addresses
from zsnapdb.planning.clone.addresses import KeptRoute


def settings_of(settings: Settings) -> AddressSettings:
    """Return the settings of the ports that clones keep. ConfigError if clones keep none."""
    if settings.clones.address is None:
        raise ConfigError("clones keep no ports of their own", hint="add a section [clones.address]")
    return settings.clones.address


def choose(settings: Settings, clones: Iterable[CloneClaim], bind_address: str) -> int | None:
    """Return the port that a clone is to keep from now on (None: none); the caller holds the lock of names and ports.

    HAProxy listens at `clones.bind_address` alone: a clone with another address keeps none, nor does one too many.
    """
    configured = settings.clones.address
    if configured is None or bind_address != settings.clones.bind_address:
        return None
    taken = {claim.kept_port for claim in clones if claim.kept_port is not None}
    return addresses.choose(configured.ports, {*taken, *settings.clones.reserved_ports})


def route_of(info: CloneInfo) -> KeptRoute:
    """Return where the port of the clone must lead."""
    return KeptRoute(info.host, info.port)


def lead(settings: Settings, info: CloneInfo, events: Events) -> CloneInfo:
    """Lead the port of the clone to its server, and end every session of before; warn if that cannot be done.

    The caller holds the lock of names and ports. Return the clone with what is true of its port now.
    """
    configured = settings.clones.address
    if configured is None or info.kept_port is None:
        return info
    try:
        haproxy.lead_port(configured, info.kept_port, route_of(info))
    except ZsnapdbError as error:
        events.warn(f"clone {info.label} is reached at port {info.port} of its server: {error.message}")
        return replace(info, is_led_to=False)
    return replace(info, is_led_to=True)


def open_to(settings: Settings, info: CloneInfo, events: Events) -> CloneInfo:
    """As `lead`, if HAProxy does not lead there yet; the caller holds the clone's lock."""
    if info.kept_port is None or info.is_led_to:
        return info
    with locks.names_and_ports():
        return lead(settings, info, events)


def close(settings: Settings, host: Host, info: CloneInfo) -> None:
    """Lead the port of a clone that is gone nowhere, where HAProxy is there."""
    if settings.clones.address is not None and info.is_led_to:
        follow_if_there(settings, host)


@dataclass(frozen=True)
class KeptPort:
    """A port that a clone keeps, or that leads somewhere: its clone (None: none has it), and where HAProxy leads it.

    `is_listened_at`: HAProxy listens at it. Its configuration may be older than that of zsnapdb.
    """

    port: int
    clone: CloneInfo | None
    seen: KeptRoute | None
    is_listened_at: bool

    @property
    def wanted(self) -> KeptRoute | None:
        """Where HAProxy must lead it; None: nowhere."""
        return route_of(self.clone) if self.clone is not None else None

    @property
    def is_right(self) -> bool:
        """Whether HAProxy leads it where it must."""
        return self.seen == self.wanted


@dataclass(frozen=True)
class KeptPorts:
    """All ports that are in use, and why HAProxy does not say where they lead (None: it does)."""

    ports: tuple[KeptPort, ...]
    error: ZsnapdbError | None = None

    @property
    def wrong(self) -> tuple[KeptPort, ...]:
        """Those that HAProxy does not lead where they must."""
        return tuple(port for port in self.ports if not port.is_right)


def look(settings: Settings, host: Host) -> KeptPorts:
    """Return the ports that clones keep, and those that lead somewhere. ConfigError if clones keep none here."""
    configured, error = settings_of(settings), None
    of_port = {info.kept_port: info for info in catalogue.listing(settings, host) if info.kept_port is not None}
    try:
        seen = haproxy.routes(configured)
    except ZsnapdbError as failed:
        seen, error = {}, failed
    used = {*of_port, *(port for port, route in seen.items() if route is not None)}
    ports = (KeptPort(port, of_port.get(port), seen.get(port), port in seen) for port in sorted(used))
    return KeptPorts(tuple(ports), error)


def follow(settings: Settings, host: Host) -> tuple[KeptPort, ...]:
    """Lead every port where it must, and return those that were not. PreflightError if HAProxy does not follow.

    A port at which it does not listen is among them, and stays as it is.
    """
    configured = settings_of(settings)
    with locks.names_and_ports():
        known = look(settings, host)
        if known.error is not None:
            raise known.error
        for kept in known.wrong:
            if kept.is_listened_at:
                haproxy.lead_port(configured, kept.port, kept.wanted)
    return known.wrong


def follow_if_there(settings: Settings, host: Host) -> None:
    """As `follow`, where clones keep ports. That HAProxy does not follow is said by the doctor."""
    if settings.clones.address is not None:
        with contextlib.suppress(ZsnapdbError):
            follow(settings, host)


def configuration(settings: Settings, host: Host) -> str:
    """Return the configuration of HAProxy, with every port led where it must now."""
    listed = catalogue.listing(settings, host)
    must = {info.kept_port: route_of(info) for info in listed if info.kept_port is not None}
    return addresses.configuration(settings_of(settings), settings.clones.bind_address, must, haproxy.account())


def write_configuration(settings: Settings, host: Host, file: Path) -> None:
    """Replace the file by the configuration of HAProxy. PreflightError if that cannot be done."""
    text = configuration(settings, host)
    try:
        whole_file.replace(file, text.encode(), 0o644)
    except OSError as error:
        raise PreflightError(f"writing {file}: {error.strerror}", hint="name a file in a folder that exists") from error
