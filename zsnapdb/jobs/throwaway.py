"""Clones that a job makes for itself: how they are made, reached and ended."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.config import Settings
from zsnapdb.jobs.clone import create, destroy
from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.common import Instance
from zsnapdb.jobs.copies import PRIVATE_FOLDER
from zsnapdb.mysql.server import ServerProcess
from zsnapdb.mysql.session import Address, Session


@dataclass(frozen=True)
class Served:
    """A clone whose server was started, and the account that may do everything in it."""

    info: CloneInfo
    user: str
    password: SecretStr

    @property
    def process(self) -> ServerProcess:
        """Its server, running or not."""
        return ServerProcess(self.info.mount / PRIVATE_FOLDER)

    @property
    def address(self) -> Address:
        """How that account reaches it: by the socket in its private folder."""
        return Address(self.user, self.process.socket)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        """Open a session. `read_timeout` in seconds for each answer."""
        return Session.open(self.address, self.password, read_timeout=read_timeout)


def make(settings: Settings, instance: Instance, source: str, name: str, *, mask: bool = False) -> Served:
    """Make a clone of a snapshot set and start its server."""
    made = create.create(settings, instance, source, name, mask=mask)
    return Served(made.info, made.user, made.password)


def end(settings: Settings, name: str) -> None:
    """Destroy the clone."""
    destroy.destroy(settings, name)


@contextlib.contextmanager
def throwaway(settings: Settings, instance: Instance, source: str, purpose: str) -> Iterator[Served]:
    """A clone that is gone after the block. `purpose` begins its name."""
    made = make(settings, instance, source, f"{purpose}-{secrets.token_hex(5)}")
    try:
        yield made
    finally:
        end(settings, made.info.name)
