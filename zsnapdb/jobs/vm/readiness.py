"""Waiting until a started machine is ready: it runs, its agent or server answers, or its serial line prints a text."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zsnapdb.base.errors import CommandTimeout, ConsistencyError, PreflightError, UsageError
from zsnapdb.base.patterns import printable
from zsnapdb.mysql.process.discovery import greeting_of
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, Hypervisor, MachineState

_POLL_SECONDS = 0.2
_READ_BYTES = 1 << 20
_TAIL_LINES = 5
_SERVER_PORT = 3306
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_GREETING_SECONDS = 5.0
"""The seconds of waiting for one address. A server greets at once (MySQL's connect_timeout is for clients)."""


class ReadyKind(StrEnum):
    """Kinds of signs that a machine is ready."""

    STARTED = "started"
    AGENT = "agent"
    SERIAL = "serial"
    SERVER = "server"


@dataclass(frozen=True)
class ReadyMarker:
    """The sign that a machine is ready.

    `text` is the expected text on its serial line, `port` the TCP port on which a MySQL or MariaDB server greets.
    """

    kind: ReadyKind = ReadyKind.STARTED
    text: str = ""
    port: int = 0

    @property
    def words(self) -> str:
        """The marker in the form of the command line."""
        details = {ReadyKind.SERIAL: f":{self.text}", ReadyKind.SERVER: f":{self.port}"}
        return f"{self.kind}{details.get(self.kind, '')}"


def marker(text: str) -> ReadyMarker:
    """Return the marker that `started`, `agent`, `serial:TEXT` or `server[:PORT]` names. UsageError for anything else.

    The port of a server is 3306 if none is given.
    """
    kind, separator, words = text.partition(":")
    if kind == ReadyKind.SERVER and (not separator or _PORT.fullmatch(words)) and int(words or _SERVER_PORT) < 1 << 16:
        return ReadyMarker(ReadyKind.SERVER, port=int(words or _SERVER_PORT))
    if kind not in set(ReadyKind) - {ReadyKind.SERVER} or (kind == ReadyKind.SERIAL) != bool(words):
        raise UsageError(
            f"{text!r} does not say what to wait for", hint="give started, agent, serial:TEXT or server:PORT"
        )
    return ReadyMarker(ReadyKind(kind), words)


def refuse_unreachable(shows: ReadyMarker, network: str) -> None:
    """Raise PreflightError if the marker is a server on a network where this host has no address."""
    if shows.kind is ReadyKind.SERVER and network == f"network {ISOLATED_NETWORK}":
        raise PreflightError(
            f"this host has no address on the network {ISOLATED_NETWORK}, which --wait-for {shows.words} needs",
            hint="name another network (--network), or wait for the agent or the serial line",
        )


def wait(hypervisor: Hypervisor, name: str, uuid: str, shows: ReadyMarker, log: Path, patience: float) -> None:
    """Wait until the machine is ready.

    ConsistencyError if it ends meanwhile, CommandTimeout after `patience` seconds; both have the last lines of its
    serial line.
    """
    deadline = time.monotonic() + patience
    while not _is_ready(hypervisor, uuid, shows, log, deadline):
        known = hypervisor.find(uuid)
        state = MachineState.MISSING if known is None else known.state
        if state is not MachineState.RUNNING:
            raise ConsistencyError(
                f"the virtual machine {name} is {state} and not ready. Its serial line: {_tail(log)}",
                hint=f"see the log of QEMU, usually /var/log/libvirt/qemu/{name}.log",
            )
        if time.monotonic() >= deadline:
            addresses = f" {_addresses(hypervisor, uuid)}." if shows.kind is ReadyKind.SERVER else ""
            raise CommandTimeout(
                f"the virtual machine {name} did not show {shows.words} within {patience:g} s.{addresses}"
                f" Its serial line: {_tail(log)}",
                hint="raise vms.start_timeout, or wait for something else with --wait-for",
            )
        time.sleep(_POLL_SECONDS)


def _addresses(hypervisor: Hypervisor, uuid: str) -> str:
    addresses = ", ".join(printable(address) for address in hypervisor.addresses(uuid))
    return f"No server greeted at {addresses}" if addresses else "libvirt knows no address of it (is there an agent?)"


def _is_ready(hypervisor: Hypervisor, uuid: str, shows: ReadyMarker, log: Path, deadline: float) -> bool:
    if shows.kind is ReadyKind.AGENT:
        return hypervisor.agent_answers(uuid)
    if shows.kind is ReadyKind.SERIAL:
        return shows.text in _printed(log)
    if shows.kind is ReadyKind.SERVER:
        # A guest may name many addresses that never answer.
        return any(
            greeting_of(address, shows.port, min(_GREETING_SECONDS, left))
            for address in hypervisor.addresses(uuid)
            if (left := deadline - time.monotonic()) > 0
        )
    known = hypervisor.find(uuid)
    return known is not None and known.state is MachineState.RUNNING


def _printed(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _tail(log: Path) -> str:
    lines = [printable(line) for line in _printed(log).splitlines() if line.strip()]
    return " / ".join(lines[-_TAIL_LINES:])[-500:] or "(nothing)"
