"""Commands that notify of their starts and ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from zsnapdb.base.errors import ZsnapdbError

Command = TypeVar("Command", bound=Callable[..., None])


def notifying(job: str, command: Command) -> Command:
    """Return the command, which now also notifies whom the configuration names. Only showing a plan notifies nobody.

    `job` is the value of a NotifiedJob.
    """

    @functools.wraps(command)
    def run(*words: Any, **options: Any) -> None:
        from zsnapdb.config.settings import load

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
        from zsnapdb.cli import log

        log.about(instance=instance, job=job)
        if not settings.notifications.to:
            command(*words, **options)
            return
        from zsnapdb.config.notifications import NotifiedJob
        from zsnapdb.notify.commands import notified

        with notified(settings, NotifiedJob(job), instance, tell):
            command(*words, **options)

    return run  # type: ignore[return-value]


def tell(text: str) -> None:
    """Print a line about notifications to stderr."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    log.write(LogLevel.WARNING, text)
