"""Requests to a guest's agent, which thaws the guest's file systems and runs programs. The results are checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.base.errors import CommandError, CommandTimeout, DamagedError
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.guest_agent_messages import GuestProgramEnd

_ANSWER_SECONDS = 5.0
_PAUSE_SECONDS = 0.5


class Agent(Protocol):
    """The interface through which requests are sent to the agent in a guest."""

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        """Return the agent's answer. Raises CommandError if the agent does not answer."""


@dataclass(frozen=True)
class Thawed:
    """A thawed guest: the number of file systems that its agent thawed, and the problem that occurred ("": none).

    The number does not include file systems that another program had thawed before. The agent's status does not show
    such a thaw, because it reflects the last request to the agent and not the state in the kernel
    (qga/commands-linux.c, qmp_guest_fsfreeze_do_thaw).
    """

    count: int
    trouble: str = ""


def is_frozen(hypervisor: Agent, uuid: str) -> bool:
    """Whether the agent reports frozen file systems. Raises CommandError if the agent does not answer."""
    return guest_agent_messages.is_frozen(hypervisor.ask_agent(uuid, guest_agent_messages.STATUS, _ANSWER_SECONDS))


def thaw(hypervisor: Agent, uuid: str, patience: float, sleep: Callable[[float], None] = time.sleep) -> Thawed:
    """Thaw the guest's file systems until the agent reports them as thawed.

    An agent that is still running an earlier freeze answers late. So the function repeats the request for up to
    `patience` seconds. Raises CommandTimeout if the agent has not reported the thaw by then.
    """
    deadline, problem = time.monotonic() + patience, ""
    while True:
        try:
            count = guest_agent_messages.count(hypervisor.ask_agent(uuid, guest_agent_messages.THAW, _ANSWER_SECONDS))
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


_PROGRAM_ANSWER_SECONDS = 30.0
_PROGRAM_PAUSE_SECONDS = 0.2


def run_program(
    hypervisor: Agent,
    uuid: str,
    argv: Sequence[str],
    text: str,
    deadline: float,
    sleep: Callable[[float], None] = time.sleep,
) -> GuestProgramEnd:
    """Run the program with the text as its stdin, and return how it ended.

    Raises CommandError if the agent refuses, as many agents are configured to do. Raises CommandTimeout if the program
    has not ended at `deadline` (of the monotonic clock); the program then continues. Raises DamagedError if the agent's
    answer has an unknown format.
    """
    try:
        number = guest_agent_messages.started(
            hypervisor.ask_agent(uuid, guest_agent_messages.start(argv, text), _PROGRAM_ANSWER_SECONDS)
        )
    except CommandTimeout:
        raise
    except CommandError as error:
        raise CommandError(
            f"the guest agent does not run {argv[0]}: {error.message}",
            hint="let the agent in the guest run programs: guest-exec and guest-exec-status must not be in block-rpcs,"
            f" and must be in allow-rpcs if that is set (qemu-ga.conf); and see that {argv[0]} is installed there",
        ) from error
    while True:
        end = guest_agent_messages.parse_end(
            hypervisor.ask_agent(uuid, guest_agent_messages.status(number), _PROGRAM_ANSWER_SECONDS)
        )
        if end is not None:
            return end
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"{argv[0]} in the guest has not ended in time", hint="raise vms.start_timeout or drill.check_timeout"
            )
        sleep(_PROGRAM_PAUSE_SECONDS)
