"""`zsnapdb list` and `zsnapdb show`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, NamedInstance, RepositoryName


def list_backups(
    instance: InstanceName = None, repository: RepositoryName = None, config: ConfigFile = None, json: AsJson = False
) -> None:
    """List the backups of an instance, oldest first."""
    from zsnapdb.cli.progress import tell
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report import document as as_json
    from zsnapdb.report import text as as_text

    found = inventory.inventory(Instance.at(load(config), instance, repository, tell))
    print(as_json.inventory(found) if json else as_text.inventory(found))
    for error in found.damaged:
        print(f"zsnapdb: {error}", file=sys.stderr)
    if found.damaged:
        raise typer.Exit(found.damaged[0].exit_code)


def show(
    instance: NamedInstance,
    backup: Annotated[str, typer.Argument(metavar="[BACKUP]", help="A backup id, or latest.")] = "latest",
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show one backup: position, lock, volumes, and what a restore of it needs."""
    from zsnapdb.cli.progress import tell
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report import document as as_json
    from zsnapdb.report import text as as_text

    found = inventory.detail(Instance.at(load(config), instance, repository, tell), backup)
    print(as_json.detail(found) if json else as_text.detail(found))
