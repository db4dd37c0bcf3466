"""What most commands begin with. What reads a configuration is loaded only by a command that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.base.instance import Instance


def on_host(config: Path | None) -> tuple[Settings, Host]:
    """Return the configuration and this host, whose clocks are recorded."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.removal_time import removal_time

    removal_time(THIS_HOST)
    return load(config), THIS_HOST


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
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.base.removal_time import removal_time

    settings = load(config).with_binary(name, binary)
    instance = Instance.at(settings, name, repository, Terminal()).waiting(parse_duration(wait))
    removal_time(instance.host)
    return settings, instance
