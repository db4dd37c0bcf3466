"""The end of the error log of a clone's server, for its users."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import meant
from zsnapdb.jobs.clone.catalogue import find
from zsnapdb.jobs.clone.clone_info import CloneInfo


@dataclass(frozen=True)
class ServerLog:
    """The last lines of the log, at most 64 KiB. The server's account, and whoever uses the clone, chose their text."""

    info: CloneInfo
    lines: tuple[str, ...]


def tail(settings: Settings, host: Host, name: str, lines: int) -> ServerLog:
    """Return the last lines of the error log of the clone's server, whether it runs or not. No link is followed."""
    info = find(settings, host, name)
    meant.require(info, name)
    return ServerLog(info, tuple(info.process.log_tail(lines).splitlines()))
