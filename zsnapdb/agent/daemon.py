"""The life of the agent: one on a host, from its start until it is told to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from zsnapdb.agent.children import StartChild
from zsnapdb.agent.overview import LOCK
from zsnapdb.agent.pages import Pages
from zsnapdb.agent.records import Records
from zsnapdb.agent.service_manager import notify
from zsnapdb.agent.supervisor import Supervisor
from zsnapdb.agent.web import WebServer
from zsnapdb.config import Settings
from zsnapdb.errors import ConfigError
from zsnapdb.jobs.exclusion import exclusive
from zsnapdb.jobs.host import Host
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


def serve(
    load: Callable[[], Settings], start: StartChild, host: Host, stop: Stop, reload: Reload, tell: Callable[[str], None]
) -> None:
    """Run the jobs of the configuration until the stop is requested.

    ConfigError if the configuration gives the agent no job, BusyError if another agent runs on this host. A turn feeds
    the watchdog of systemd if every job works, ends, or is being stopped: if the agent hangs, or if a job that does
    nothing cannot be ended, the service is started again.
    """
    settings = load()
    if not jobs_of(settings):
        raise ConfigError(
            "the configuration gives the agent no job", hint="write one, such as backup, in [instance.NAME.agent]"
        )
    pages = Pages(settings, host)
    with exclusive(LOCK, doing="the agent of this host", folder=host.run), _answering(settings, pages):
        supervisor = Supervisor(settings, Records(settings.agent.state), start, host.now, tell)
        notify("READY=1")
        while not stop.is_set():
            if reload.take():
                _reload(supervisor, load, tell)
                pages.settings = supervisor.settings
            seconds = supervisor.turn()
            if not supervisor.is_stuck:
                notify("WATCHDOG=1")
                pages.turned()
            stop.wait(seconds)
        notify("STOPPING=1")
        tell("the agent ends")
        # The stop is set: waiting for it would not wait.
        supervisor.end(time.sleep, _PATIENCE)


@contextlib.contextmanager
def _answering(settings: Settings, pages: Pages) -> Iterator[None]:
    """Answer by HTTP while the block runs, if the configuration has it. Another address needs another start."""
    if settings.agent.http is None:
        yield
        return
    web = WebServer(settings.agent.http, pages.answers)
    web.start()
    try:
        yield
    finally:
        web.close()


def _reload(supervisor: Supervisor, load: Callable[[], Settings], tell: Callable[[str], None]) -> None:
    """Use the configuration as it is now. One with errors changes nothing."""
    try:
        supervisor.use(load())
        tell("the configuration was read again")
    except ConfigError as error:
        tell(f"the configuration stays as it was: {error}")
