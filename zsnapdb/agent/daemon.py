"""The life of the agent: one on a host, from its start until it is told to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zsnapdb.agent import running
from zsnapdb.agent.children import Starter
from zsnapdb.agent.listener import Listener
from zsnapdb.agent.overview import LOCK
from zsnapdb.agent.pages import Pages
from zsnapdb.agent.records import Records
from zsnapdb.agent.service_manager import notify
from zsnapdb.agent.supervisor import Supervisor
from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.exclusion import exclusive
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent.jobs import jobs_of

_PATIENCE = 50.0
"""How many seconds jobs have to end; the unit gives the agent a minute."""


class Stop(Protocol):
    """A request to stop."""

    def is_set(self) -> bool: ...

    def wait(self, seconds: float) -> bool: ...


class Reload(Protocol):
    """A request to read the configuration again."""

    def take(self) -> bool:
        """Return whether there was a request since the last call."""


@dataclass(frozen=True)
class ConfigurationFile:
    """The configuration of the agent. `load` reads the file, as often as it is asked."""

    path: Path
    load: Callable[[], Settings]


def serve(
    file: ConfigurationFile, starter: Starter, host: Host, stop: Stop, reload: Reload, tell: Callable[[str], None]
) -> None:
    """Run the jobs of the configuration until the stop is requested.

    ConfigError if the configuration gives the agent no job, BusyError if another agent runs on this host. A turn feeds
    the watchdog of systemd if every job works, ends, or is being stopped: if the agent hangs, or if a job that does
    nothing cannot be ended, the service is started again.
    """
    settings = file.load()
    if not jobs_of(settings):
        raise ConfigError(
            "the configuration gives the agent no job", hint="write one, such as backup, in [instance.NAME.agent]"
        )
    pages = Pages(settings, host)
    listener = Listener(pages.answers)
    with exclusive(LOCK, doing="the agent of this host", folder=host.run), contextlib.ExitStack() as ending:
        ending.callback(listener.close)
        listener.use(settings.agent.http)
        ending.callback(starter.close)
        supervisor = Supervisor(settings, Records(settings.agent.state), starter.start, host.now, tell)
        ending.callback(running.forget, host)
        _note(settings, file, host, tell)
        notify("READY=1")
        while not stop.is_set():
            if reload.take() and _reload(supervisor, file, tell):
                pages.settings = supervisor.settings
                _note(supervisor.settings, file, host, tell)
                _listen(listener, supervisor.settings, tell)
            seconds = supervisor.turn()
            starter.tidy()
            if not supervisor.is_stuck:
                notify("WATCHDOG=1")
                pages.turned()
            stop.wait(seconds)
        notify("STOPPING=1")
        tell("the agent ends")
        # The stop is set: waiting for it would not wait.
        supervisor.end(time.sleep, _PATIENCE)


def _listen(listener: Listener, settings: Settings, tell: Callable[[str], None]) -> None:
    """Open, move or close the port. One that cannot be opened ends no job: the next reading tries again."""
    try:
        listener.use(settings.agent.http)
    except ConfigError as error:
        tell(f"the agent cannot answer by HTTP as [agent.http] says: {error}")


def _note(settings: Settings, file: ConfigurationFile, host: Host, tell: Callable[[str], None]) -> None:
    try:
        running.note(settings, file.path, host)
    except (OSError, PreflightError) as error:
        tell(f"what the agent runs with cannot be written down for `zsnapdb agent status`: {error}")


def _reload(supervisor: Supervisor, file: ConfigurationFile, tell: Callable[[str], None]) -> bool:
    """Use the configuration as it is now, and return whether it is used. One with errors changes nothing."""
    try:
        supervisor.use(file.load())
    except ConfigError as error:
        tell(f"the configuration stays as it was: {error}")
        return False
    tell("the configuration was read again")
    return True
