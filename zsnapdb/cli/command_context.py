"""Configuration and instance of a command. Modules that read a configuration are imported only when needed."""

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
"""Configurations that the current command has read, and the errors of configurations that it could not read."""


@contextlib.contextmanager
def cached_configuration(known: Mapping[Path | None, Settings] | None = None) -> Iterator[None]:
    """Read each configuration file only once while the block runs a command.

    Configurations that were read before are passed as `known`.
    """
    if _read.get() is not None:
        yield
        return
    token = _read.set(dict(known or {}))
    try:
        yield
    finally:
        _read.reset(token)


def configuration(file: Path | None) -> Settings:
    """Return the configuration. A command reads the file only once.

    Raises: ConfigError if the configuration cannot be read.
    """
    from zsnapdb.config.settings import load

    read = _read.get()
    if read is None:
        return load(file)
    if file not in read:
        try:
            read[file] = load(file)
        except ZsnapdbError as error:
            # The error is kept. If a later read succeeded, the command would continue although its evidence was
            # skipped.
            read[file] = error
    known = read[file]
    if isinstance(known, ZsnapdbError):
        raise known
    return known


def host_context(config: Path | None) -> tuple[Settings, Host]:
    """Return the configuration and this host, and record the host's clocks."""
    from zsnapdb.jobs.base.clock_record import removal_time
    from zsnapdb.jobs.base.host import THIS_HOST

    removal_time(THIS_HOST)
    return configuration(config), THIS_HOST


def instance_context(
    config: Path | None,
    name: str | None,
    repository: str | None = None,
    *,
    binary: Path | None = None,
    wait: str = "0s",
) -> tuple[Settings, Instance]:
    """Return the configuration and the named (or only) instance. Its jobs report progress on stderr.

    This host's clocks are recorded.

    - `repository`: the name of the repository (None: the repository of the instance).
    - `binary`: the only server program to start (None: the configured programs).
    - `wait`: the longest time that jobs wait for another run, as a duration.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.base.clock_record import removal_time
    from zsnapdb.jobs.base.instance import Instance

    settings = configuration(config).with_binary(name, binary)
    instance = Instance.at(settings, name, repository, Terminal()).waiting(parse_duration(wait))
    removal_time(instance.host)
    return settings, instance
