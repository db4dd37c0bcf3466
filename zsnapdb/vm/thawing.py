"""The thaw of a guest's file systems, with proof that they are thawed."""

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
    """A thawed guest: the number of file systems that its agent thawed, and the problem meanwhile ("": none).

    The number does not include file systems that another program had thawed before. The agent's status does not show
    those: it is the last request to the agent, not the state in the kernel (qga/commands-linux.c,
    qmp_guest_fsfreeze_do_thaw).
    """

    count: int
    trouble: str = ""


def is_frozen(hypervisor: Agent, uuid: str) -> bool:
    """Whether the agent reports frozen file systems. CommandError without an answer."""
    return agent.is_frozen(hypervisor.ask_agent(uuid, agent.STATUS, _ANSWER_SECONDS))


def thaw(hypervisor: Agent, uuid: str, patience: float, sleep: Callable[[float], None] = time.sleep) -> Thawed:
    """Thaw the guest's file systems until the agent reports them as thawed.

    An agent that still runs an earlier freeze answers late, so the function repeats the request for up to `patience`
    seconds. CommandTimeout if the agent has not reported it by then.
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
