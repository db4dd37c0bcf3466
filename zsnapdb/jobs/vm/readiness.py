"""Waits until a started machine is ready: it runs, its agent answers, or its serial line prints a text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zsnapdb.errors import CommandTimeout, ConsistencyError, UsageError
from zsnapdb.patterns import printable
from zsnapdb.vm.hypervisor import Hypervisor, MachineState

_POLL_SECONDS = 0.2
_READ_BYTES = 1 << 20
_TAIL_LINES = 5


class ReadyKind(StrEnum):
    """What shows that a machine is ready."""

    STARTED = "started"
    AGENT = "agent"
    SERIAL = "serial"


@dataclass(frozen=True)
class ReadyMarker:
    """What shows that a machine is ready; `text` is what its serial line prints."""

    kind: ReadyKind = ReadyKind.STARTED
    text: str = ""

    @property
    def words(self) -> str:
        """The marker as the command line takes it."""
        return f"{self.kind}:{self.text}" if self.kind is ReadyKind.SERIAL else str(self.kind)


def marker(text: str) -> ReadyMarker:
    """Return the marker that `started`, `agent` or `serial:TEXT` names. UsageError for anything else."""
    kind, _, words = text.partition(":")
    if kind not in set(ReadyKind) or (kind == ReadyKind.SERIAL) != bool(words):
        raise UsageError(f"{text!r} does not say what to wait for", hint="give started, agent or serial:TEXT")
    return ReadyMarker(ReadyKind(kind), words)


def wait(hypervisor: Hypervisor, name: str, uuid: str, shows: ReadyMarker, log: Path, patience: float) -> None:
    """Wait until the machine is ready.

    ConsistencyError if it ends meanwhile, CommandTimeout after `patience` seconds; both have the last lines of its
    serial line.
    """
    deadline = time.monotonic() + patience
    while not _is_ready(hypervisor, uuid, shows, log):
        known = hypervisor.find(uuid)
        state = MachineState.MISSING if known is None else known.state
        if state is not MachineState.RUNNING:
            raise ConsistencyError(
                f"the virtual machine {name} is {state} and not ready. Its serial line: {_tail(log)}",
                hint=f"see the log of QEMU, usually /var/log/libvirt/qemu/{name}.log",
            )
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"the virtual machine {name} did not show {shows.words} within {patience:g} s."
                f" Its serial line: {_tail(log)}",
                hint="raise vms.start_timeout, or wait for something else with --wait-for",
            )
        time.sleep(_POLL_SECONDS)


def _is_ready(hypervisor: Hypervisor, uuid: str, shows: ReadyMarker, log: Path) -> bool:
    if shows.kind is ReadyKind.AGENT:
        return hypervisor.agent_answers(uuid)
    if shows.kind is ReadyKind.SERIAL:
        return shows.text in _printed(log)
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
