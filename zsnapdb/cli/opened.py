"""What most commands begin with. What reads a configuration is loaded only by a command that needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from zsnapdb.base.errors import ZsnapdbError

if TYPE_CHECKING:
    from pathlib import Path

    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.base.instance import Instance

_read: ContextVar[dict[Path | None, Settings | ZsnapdbError] | None] = ContextVar("read", default=None)
"""The configurations that the present command has read, and the errors of those that it could not read."""


@contextlib.contextmanager
def reading_once(known: Mapping[Path | None, Settings] | None = None) -> Iterator[None]:
    """Run the block, a command, in which each configuration is read once. `known`: what was read already."""
    if _read.get() is not None:
        yield
        return
    token = _read.set(dict(known or {}))
    try:
        yield
    finally:
        _read.reset(token)


def configuration(file: Path | None) -> Settings:
    """Return the configuration, the same one however often a command asks for it. ConfigError if it cannot be read."""
    from zsnapdb.config.settings import load

    read = _read.get()
    if read is None:
        return load(file)
    if file not in read:
        try:
            read[file] = load(file)
        except ZsnapdbError as error:
            # If it can be read a moment later, the command would act without the evidence that was left out.
            read[file] = error
    known = read[file]
    if isinstance(known, ZsnapdbError):
        raise known
    return known


def on_host(config: Path | None) -> tuple[Settings, Host]:
    """Return the configuration and this host, whose clocks are recorded."""
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.removal_time import removal_time

    removal_time(THIS_HOST)
    return configuration(config), THIS_HOST


def of_instance(
    config: Path | None,
    name: str | None,
    repository: str | None = None,
    *,
    binary: Path | None = None,
    wait: str = "0s",
) -> tuple[Settings, Instance]:
    """Return the configuration and the named (or only) instance, whose jobs tell stderr what they do.

    The clocks of this host are recorded. `repository` None: its own one. `binary`: the only server program that it may
    start (None: those of the configuration). Its jobs wait this long for another run.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.base.removal_time import removal_time

    settings = configuration(config).with_binary(name, binary)
    instance = Instance.at(settings, name, repository, Terminal()).waiting(parse_duration(wait))
    removal_time(instance.host)
    return settings, instance
