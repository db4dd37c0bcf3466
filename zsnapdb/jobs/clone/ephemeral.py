"""Ephemeral clones: a job makes them for itself, connects to them and destroys them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import SecretStr

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import create, credentials, destroy, locks
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.clone.contract import INTERNAL_ACCOUNT

OWNER = "zsnapdb"
"""The owner of ephemeral clones. The reaper removes those that a killed command left."""


@dataclass(frozen=True)
class RunningClone:
    """A clone whose server was started, the login of its users, and the password of the internal account."""

    info: CloneInfo
    login: Login
    internal: SecretStr

    @property
    def process(self) -> ServerProcess:
        """The clone's server process, running or not."""
        return self.info.process

    @property
    def address(self) -> Address:
        """How the internal account connects: through the socket in the clone's private folder."""
        return Address(INTERNAL_ACCOUNT, self.process.socket)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session with all privileges. `read_timeout` in seconds for each answer."""
        return Session.open(self.address, self.internal, read_timeout=read_timeout)


def make(settings: Settings, instance: Instance, request: CloneRequest) -> RunningClone:
    """Make the requested clone and start its server."""
    made = create.create(settings, instance, request)
    login, internal = made.login, credentials.read(made.info.internal_file)
    assert login is not None, "the request starts the server"
    assert internal is not None, "it was written a moment ago"
    return RunningClone(made.info, login, internal)


@contextlib.contextmanager
def ephemeral_clone(settings: Settings, instance: Instance, request: CloneRequest) -> Iterator[RunningClone]:
    """Yield a running clone with a random name; the clone is destroyed after the block. It emits no events.

    If this process is killed, the next `zsnapdb reap` removes the clone.
    """
    name = f"own-{secrets.token_hex(5)}"
    with locks.as_maker(name):
        made = make(settings, instance.with_events(SILENT), replace(request, name=name, is_ephemeral=True))
        try:
            yield made
        finally:
            destroy.destroy_own(settings, instance.host, name)
