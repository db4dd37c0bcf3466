"""Thaws the file systems of a guest, and says for certain that they are thawed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.base.errors import CommandError, CommandTimeout, DamagedError
from zsnapdb.planning.vm import agent

_ANSWER_SECONDS = 5.0
_PAUSE_SECONDS = 0.5


class Agent(Protocol):
    """The part of a hypervisor that asks the agent in a guest."""

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        """Return the agent's answer. CommandError without one."""


@dataclass(frozen=True)
class Thawed:
    """A guest that was thawed: how many file systems its agent thawed, and what went wrong meanwhile ("": nothing).

    What something else had thawed before is not counted. The status of the agent does not tell: it says what the agent
    was asked to do, not what the kernel does (qga/commands-linux.c, qmp_guest_fsfreeze_do_thaw).
    """

    count: int
    trouble: str = ""


def is_frozen(hypervisor: Agent, uuid: str) -> bool:
    """Whether the agent says that the guest's file systems are frozen. CommandError without an answer."""
    return agent.is_frozen(hypervisor.ask_agent(uuid, agent.STATUS, _ANSWER_SECONDS))


def thaw(hypervisor: Agent, uuid: str, patience: float, sleep: Callable[[float], None] = time.sleep) -> Thawed:
    """Thaw the guest's file systems. Afterwards the agent has said that they are thawed.

    An agent that still runs an earlier freeze answers late, so it is asked again for up to `patience` seconds.
    CommandTimeout if the agent has not said so until then.
    """
    deadline, problem = time.monotonic() + patience, ""
    while True:
        try:
            count = agent.count(hypervisor.ask_agent(uuid, agent.THAW, _ANSWER_SECONDS))
            if not is_frozen(hypervisor, uuid):
                return Thawed(count, problem)
            problem = "it says that they are still frozen"
        except (CommandError, DamagedError) as error:
            problem = error.message
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"the guest agent of the domain {uuid} does not confirm that the guest's file systems are thawed:"
                f" {problem}",
                hint="run `virsh domfsthaw`; if the guest does not answer, restart the machine",
            )
        sleep(_PAUSE_SECONDS)
