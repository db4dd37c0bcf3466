"""Clones that a job makes for itself: how they are made, reached and ended."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.jobs.clone import create, destroy
from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.create import CloneRequest
from zsnapdb.jobs.events import SILENT
from zsnapdb.jobs.instance import Instance
from zsnapdb.mysql.server import ServerProcess
from zsnapdb.mysql.session import Address, Session

OWNER = "zsnapdb"
"""Who owns clones of ours; what a killed job leaves is reaped as any clone is."""


@dataclass(frozen=True)
class Served:
    """A clone whose server was started, and the account that may do everything in it."""

    info: CloneInfo
    user: str
    password: SecretStr

    @property
    def process(self) -> ServerProcess:
        """Its server, running or not."""
        return self.info.process

    @property
    def address(self) -> Address:
        """How that account reaches it: by the socket in its private folder."""
        return Address(self.user, self.process.socket)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session. `read_timeout` in seconds for each answer."""
        return Session.open(self.address, self.password, read_timeout=read_timeout)


def make(settings: Settings, instance: Instance, wish: CloneRequest) -> Served:
    """Make the clone that is wished for and start its server."""
    made = create.create(settings, instance, wish)
    login = made.login
    assert login is not None, "a clone that is to be used is started"
    return Served(made.info, login.user, login.password)


def end(settings: Settings, name: str) -> None:
    """Destroy the clone."""
    destroy.destroy(settings, name)


@contextlib.contextmanager
def throwaway(settings: Settings, instance: Instance, wish: CloneRequest) -> Iterator[Served]:
    """A clone that is gone after the block; its name is made up. It is made silently: the job around it tells."""
    made = make(settings, instance.with_events(SILENT), replace(wish, name=f"own-{secrets.token_hex(5)}"))
    try:
        yield made
    finally:
        end(settings, made.info.name)
