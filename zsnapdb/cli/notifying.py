"""Commands that notify of their starts and ends."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from zsnapdb.errors import ZsnapdbError
from zsnapdb.printed import printed

Command = TypeVar("Command", bound=Callable[..., None])


def notifying(job: str, command: Command) -> Command:
    """Return the command, which now also notifies whom the configuration names. Only showing a plan notifies nobody.

    `job` is the value of a NotifiedJob.
    """

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from zsnapdb.config import load

        if options.get("plan"):
            command(*words, **options)
            return
        try:
            settings = load(options.get("config"))
            instance, _ = settings.one_instance(options.get("instance"))
        except ZsnapdbError:
            # The command says what is wrong.
            command(*words, **options)
            return
        if not settings.notifications.to:
            command(*words, **options)
            return
        from zsnapdb.config_notifications import NotifiedJob
        from zsnapdb.notify.commands import notified

        with notified(settings, NotifiedJob(job), instance, tell):
            command(*words, **options)

    return run  # type: ignore[return-value]


def tell(text: str) -> None:
    """Print a line about notifications to stderr."""
    print(printed(f"zsnapdb: {text}"), file=sys.stderr, flush=True)
