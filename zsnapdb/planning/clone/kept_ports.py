"""Chooses the ports reserved for clones, reads the routes of ports from HAProxy, and builds HAProxy commands. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.services import AddressSettings

_BACKEND = "zsnapdb_"
_SERVER = "clone"
_RUNS = "2"
_DISABLED_AT_START = 0x04
"""A bit of srv_admin_state in HAProxy's answer: the configuration disables the server.

The bit stays set even after the server becomes ready (HAProxy 3.0).
"""
_COLUMNS = ("be_name", "srv_name", "srv_addr", "srv_op_state", "srv_admin_state", "srv_port")


@dataclass(frozen=True)
class KeptRoute:
    """The target of a port: the address and the port of a server on this host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


KeptRoutes = Mapping[int, KeptRoute | None]
"""The target of each port at which HAProxy listens; None if the port has no target."""


def choose(ports: Collection[int], taken: Collection[int]) -> int | None:
    """Return the lowest of the ports that is not reserved for a clone; None if all are reserved."""
    return min(set(ports) - set(taken), default=None)


def read_state(answer: str, ports: Collection[int]) -> dict[int, KeptRoute | None]:
    """Return the route of each port, as read from HAProxy's answer to `show servers state`.

    Raises ValueError if the answer has another format. HAProxy's management guide (chapter 9.3) describes the format:
    the second line lists the columns. The function reads version 1, which HAProxy 2.6 and 3.0 print.
    """
    lines = [line for line in answer.split("\n") if line.strip()]
    if len(lines) < 2 or lines[0].strip() != "1" or not lines[1].startswith("# "):
        raise ValueError("it is not a server state of version 1")
    columns = lines[1][2:].split()
    places = {name: columns.index(name) for name in _COLUMNS if name in columns}
    if len(places) != len(_COLUMNS):
        raise ValueError("the server state lacks a column")
    routes: dict[int, KeptRoute | None] = {}
    for line in lines[2:]:
        words = line.split()
        if len(words) <= max(places.values()):
            raise ValueError("a line of the server state is truncated")
        value = {name: words[place] for name, place in places.items()}
        port = _number(value["be_name"].removeprefix(_BACKEND))
        if not value["be_name"].startswith(_BACKEND) or value["srv_name"] != _SERVER or port not in ports:
            continue
        leads = value["srv_op_state"] == _RUNS and _number(value["srv_admin_state"]) & ~_DISABLED_AT_START == 0
        routes[port] = KeptRoute(value["srv_addr"], _number(value["srv_port"])) if leads else None
    return routes


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else -1


STATE_COMMAND = "show servers state"


def switching(port: int, route: KeptRoute | None) -> Sequence[str]:
    """Return the HAProxy commands that end the port's sessions and set its route (None: the port has no target)."""
    server = f"{_BACKEND}{port}/{_SERVER}"
    away = (f"set server {server} state maint", f"shutdown sessions server {server}")
    if route is None:
        return away
    return (*away, f"set server {server} addr {route.host} port {route.port}", f"set server {server} state ready")


def configuration(
    settings: AddressSettings, listens_at: str, wanted: Mapping[int, KeptRoute], account: str | None
) -> str:
    """Return the configuration of a separate HAProxy for these ports, with their current routes.

    HAProxy starts as root and then switches to `account`. If `account` is None, HAProxy runs as the user who starts it.

    The configuration has no health checks. A server counts each health check as a failed login, and blocks a host after
    several of them (max_connect_errors).
    """
    lines = [
        "# Written by `zsnapdb clone addresses --haproxy FILE`. Later changes come by the admin socket.",
        "global",
        f"    stats socket {settings.socket} mode 600 level admin",
        "    stats timeout 10s",
        *([f"    user {account}", f"    group {account}"] if account is not None else []),
        "defaults",
        "    mode tcp",
        "    timeout connect 5s",
        "    timeout client 24h",
        "    timeout server 24h",
        "    option clitcpka",
        "    option srvtcpka",
    ]
    for port in settings.ports:
        route = wanted.get(port)
        leads = f"{route.host}:{route.port}" if route is not None else "127.0.0.1:1 disabled"
        lines += [f"listen {_BACKEND}{port}", f"    bind {listens_at}:{port}", f"    server {_SERVER} {leads}"]
    return "\n".join(lines) + "\n"


def choose_port(first: int, last: int, taken: Collection[int], is_free: Callable[[int], bool]) -> int:
    """Return the lowest port from `first` to `last` that no clone uses and that is free on the host.

    Raises PreflightError if there is no such port.
    """
    for port in range(first, last + 1):
        if port not in taken and is_free(port):
            return port
    raise PreflightError(
        f"no free port from {first} to {last}: clones have {len(taken)} of them",
        hint="destroy a clone, or widen clones.first_port to clones.last_port",
    )
