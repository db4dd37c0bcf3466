"""Pins: keep a backup whatever the rules say, and let it go again."""

from __future__ import annotations

from zsnapdb.errors import ConfigError, NotThere
from zsnapdb.jobs.instance import Instance
from zsnapdb.repository import pins
from zsnapdb.repository.pins import Pin


def pin(instance: Instance, wanted: str, reason: str) -> Pin:
    """Pin a backup (an id or `latest`).

    Afterwards no prune removes it or what it is an increment of. NotThere if there is none.
    """
    if not reason.strip():
        raise ConfigError(
            "a pin needs a reason", hint='such as --reason "before the migration": somebody will ask whether it may go'
        )
    repository = instance.open_repository()
    if wanted == "latest":
        ids = repository.backup_ids(instance.name)
        if not ids:
            raise NotThere(f"the repository holds no backup of instance {instance.name}", hint="see `zsnapdb list`")
        wanted = ids[-1]
    return pins.pin(repository, instance.name, wanted, reason.strip())


def unpin(instance: Instance, wanted: str) -> Pin:
    """Take a backup's pin away; NotThere if it has none."""
    return pins.unpin(instance.open_repository(), instance.name, wanted)
