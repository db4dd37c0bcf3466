"""Commands that leave evidence of what they did, if the repository keeps an evidence log."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from zsnapdb.errors import ZsnapdbError

Command = TypeVar("Command", bound=Callable[..., None])


def evidencing(job: str, command: Command) -> Command:
    """Return the command, which now also writes into the evidence log how it ended. Showing a plan is no deed."""

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from zsnapdb.cli.progress import Terminal
        from zsnapdb.config import load
        from zsnapdb.jobs.instance import Instance

        if options.get("plan"):
            command(*words, **options)
            return
        try:
            name = options.get("repository")
            chosen = Instance.at(load(options.get("config")), options.get("instance"), name, Terminal())
        except ZsnapdbError:
            # The command says what is wrong.
            command(*words, **options)
            return
        if not chosen.repository.evidence:
            command(*words, **options)
            return
        from zsnapdb.jobs.evidence import recorded

        with recorded(chosen, job, ("zsnapdb", *sys.argv[1:])):
            command(*words, **options)

    return run  # type: ignore[return-value]
