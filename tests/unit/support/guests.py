"""A guest with an agent in memory: it freezes, hangs, refuses and thaws by itself under control of the test."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.unit.support.machine_pool import MemoryHypervisor
from zsnapdb.base.errors import CommandError, CommandTimeout
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.domain import Domain, parse
from zsnapdb.vm.hypervisor import KnownDomain, MachineState


class MemoryGuests(MemoryHypervisor):
    """A libvirt with one guest agent for all its machines."""

    def __init__(self) -> None:
        super().__init__()
        self.is_frozen = False
        self.asked: list[str] = []
        self.count = 2
        self.refuses: set[str] = set()
        self.hangs: set[str] = set()
        self.deaf_thaws = 0
        """Number of thaws that the agent does not answer."""
        self.failing_hook = ""
        """Message of the agent's hook after the first thaw, which the agent then reports as failed."""
        self.running_xml: str | None = None
        self.ended_itself = False

    def domains(self) -> list[KnownDomain]:
        return [known for known in map(self.find, self.known) if known is not None]

    def find(self, uuid: str) -> KnownDomain | None:
        known = self.known.get(uuid)
        if known is None:
            return None
        xml, state = known
        return KnownDomain(parse(xml), xml, state, state is MachineState.OFF and self.ended_itself)

    def as_it_runs(self, uuid: str) -> Domain:
        return parse(self.running_xml or self.known[uuid][0])

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        verb = json.loads(command)["execute"].removeprefix("guest-").removeprefix("fsfreeze-")
        self.asked.append(verb)
        if self.known[uuid][1] is not MachineState.RUNNING or verb in self.refuses:
            raise CommandError(f"the agent refuses {verb}")
        if command == guest_agent_messages.FREEZE:
            self.is_frozen = True
            if verb in self.hangs:
                raise CommandTimeout("the agent does not answer")
            return self._answer(self.count)
        if command == guest_agent_messages.THAW:
            if self.deaf_thaws:
                self.deaf_thaws -= 1
                raise CommandTimeout("the agent does not answer")
            was, self.is_frozen = self.is_frozen, False
            if self.failing_hook:
                said, self.failing_hook = self.failing_hook, ""
                raise CommandError(said)
            return self._answer(self.count if was else 0)
        if command == guest_agent_messages.STATUS:
            return self._answer("frozen" if self.is_frozen else "thawed")
        return self._answer([{"mountpoint": "/"}, {"mountpoint": "/var/lib/mysql"}])

    def _answer(self, value: Any) -> str:
        return json.dumps({"return": value})


class FakeGuard:
    """A guard that records its messages."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.fails = False

    @contextlib.contextmanager
    def open(self, uri: str, uuid: str, deadline: float, turn: int) -> Iterator[Any]:
        if self.fails:
            raise CommandError("the guard did not start")
        self.told.append(f"opened {deadline:g}")
        yield self

    def freezing(self) -> None:
        self.told.append("freezing")

    def thawed(self) -> None:
        self.told.append("thawed")


class MemoryClient(MemoryHypervisor):
    """A libvirt whose guests have a server client. Its output is set by the test for each prefix of a statement.

    `errors` are returned first, one per attempt, before it answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.printed: dict[str, str] = {}
        self.errors: list[str] = []
        self.refuses = ""
        self.argv: list[list[str]] = []
        self._sql: list[str] = []

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        asked = json.loads(command)
        arguments = asked["arguments"]
        if asked["execute"] == "guest-exec":
            if self.refuses:
                raise CommandError(self.refuses)
            self.argv.append([arguments["path"], *arguments["arg"]])
            self._sql.append(base64.b64decode(arguments["input-data"]).decode())
            return json.dumps({"return": {"pid": len(self._sql)}})
        assert self.known[uuid][1] is MachineState.RUNNING
        if self.errors:
            said = base64.b64encode(self.errors.pop(0).encode()).decode()
            return json.dumps({"return": {"exited": True, "exitcode": 1, "err-data": said}})
        sql = self._sql[arguments["pid"] - 1]
        (out,) = (text for begin, text in self.printed.items() if sql.startswith(begin))
        data = base64.b64encode(out.encode()).decode()
        return json.dumps({"return": {"exited": True, "exitcode": 0, "out-data": data}})
