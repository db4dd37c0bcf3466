"""QEMU's guest agent on a lab guest itself: it listens on a socket and freezes the guest's file systems.

qga.py COMMAND     sends the command to the agent and prints its answer
qga.py hold        freezes with zsnapdb's own code, thaws, and prints why the freeze does not count
qga.py hold FILE   thaws only after a write to the file
qga.py ask CLIENT… queries the server as a machine drill does, with this client, and prints the answer
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zsnapdb.base.errors import CommandError, ServerError
from zsnapdb.config import settings
from zsnapdb.jobs.backup.guest_freeze import prepared
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.trial import machine_drill
from zsnapdb.jobs.trial.machine_drill import InsideClient
from zsnapdb.vm.thaw_guard import ThawGuard

SOCKET = "/run/qga.sock"
UUID = "11111111-2222-4333-8444-555555555555"
CONFIG = """
[instance.web]
repository = "r"
[instance.web.vm]
domain = "web"
[repository.r]
url = "file:///nowhere"
"""


class ListeningAgent:
    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        """Return the agent's answer. CommandError if it refuses, as with libvirt."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(600.0)
            line.connect(SOCKET)
            line.sendall(f"{command}\n".encode())
            answer = line.makefile().readline()
        if "error" in json.loads(answer):
            raise CommandError(answer.strip())
        return answer


class NoGuard(ThawGuard):
    """A guard without a second process that thaws."""

    def __init__(self) -> None:
        pass

    def _say(self, line: bytes) -> None:
        pass


@contextlib.contextmanager
def unguarded(uri: str, uuid: str, deadline: float, turn: int) -> Iterator[ThawGuard]:
    yield NoGuard()


def hold(files: list[str]) -> None:
    """Freeze, write to the files, thaw, and print the problem."""
    instance = Instance.of(settings.parse(CONFIG, "lab"), "web")
    instance = replace(instance, host=replace(THIS_HOST, run=Path("/run/qga-test")))
    with prepared(instance, ListeningAgent(), UUID, 30.0, unguarded) as freeze:
        freeze.begin()
        for file in files:
            Path(file).write_text("written")
    print(json.dumps({"count": freeze.count, "problem": freeze.problem}))


def ask(client: list[str]) -> None:
    """Query the server with the client, and print its answers or the error."""
    try:
        answer = machine_drill.ask(InsideClient(ListeningAgent(), UUID, tuple(client), 60.0), 60.0, None)
    except (CommandError, ServerError) as error:
        print(json.dumps({"refused": str(error)}))
        return
    names = ("version", "server_uuid", "recovered", "executed", "binlogs")
    print(json.dumps({name: getattr(answer, name) for name in names}, default=str))


def main() -> None:
    if sys.argv[1] == "hold":
        hold(sys.argv[2:])
        return
    if sys.argv[1] == "ask":
        ask(sys.argv[2:])
        return
    try:
        print(ListeningAgent().ask_agent(UUID, json.dumps({"execute": sys.argv[1]}), 30.0).strip())
    except CommandError as error:
        print(error.message)


if __name__ == "__main__":
    main()
