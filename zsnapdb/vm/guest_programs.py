"""Programs in a guest, run through its agent until their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from zsnapdb.base.errors import CommandError, CommandTimeout
from zsnapdb.planning.vm import agent
from zsnapdb.planning.vm.agent import GuestProgramEnd
from zsnapdb.vm.thawing import Agent

_ANSWER_SECONDS = 30.0
_PAUSE_SECONDS = 0.2


def run(
    hypervisor: Agent,
    uuid: str,
    argv: Sequence[str],
    text: str,
    deadline: float,
    sleep: Callable[[float], None] = time.sleep,
) -> GuestProgramEnd:
    """Run the program with the text as its stdin, and return its end.

    CommandError if the agent refuses, as many are configured to do; CommandTimeout if the program has not ended at
    `deadline` (of the monotonic clock). The program then continues. DamagedError for an unexpected answer.
    """
    try:
        number = agent.started(hypervisor.ask_agent(uuid, agent.start(argv, text), _ANSWER_SECONDS))
    except CommandTimeout:
        raise
    except CommandError as error:
        raise CommandError(
            f"the guest agent does not run {argv[0]}: {error.message}",
            hint="let the agent in the guest run programs: guest-exec and guest-exec-status must not be in block-rpcs,"
            f" and must be in allow-rpcs if that is set (qemu-ga.conf); and see that {argv[0]} is installed there",
        ) from error
    while True:
        end = agent.parse_end(hypervisor.ask_agent(uuid, agent.status(number), _ANSWER_SECONDS))
        if end is not None:
            return end
        if time.monotonic() >= deadline:
            raise CommandTimeout(
                f"{argv[0]} in the guest has not ended in time", hint="raise vms.start_timeout or drill.check_timeout"
            )
        sleep(_PAUSE_SECONDS)
