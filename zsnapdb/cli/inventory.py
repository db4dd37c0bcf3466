"""`zsnapdb list` and `zsnapdb show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.base.errors import DamagedError, UsageError
from zsnapdb.cli import completion
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, NamedInstance, RepositoryName
from zsnapdb.cli.output import show, show_errors, show_missing


def list_backups(
    instance: InstanceName = None,
    repository: RepositoryName = None,
    local: Annotated[
        bool, typer.Option("--local", help="List the snapshot sets on this host. No repository is asked.")
    ] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the backups of an instance, oldest first.

    Exit code 7: a manifest cannot be read, or the repository lacks a backup that this host stored.
    """
    if local:
        if repository is not None:
            raise UsageError("--local asks no repository", hint="leave out --repository")
        _list_local(instance, config, json)
        return
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report.repository.list import InventoryView

    backups = inventory.inventory(of_instance(config, instance, repository)[1])
    show(InventoryView(backups), json)
    show_errors(backups.damaged)
    is_lacking = show_missing(backups.missing)
    if backups.damaged:
        raise typer.Exit(backups.damaged[0].exit_code)
    if is_lacking:
        raise typer.Exit(DamagedError.exit_code)


def _list_local(instance: str | None, config: Path | None, json: bool) -> None:
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.backup import local_snapshot as job
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.report.backup import LocalSetsView

    show(LocalSetsView(job.listed(Instance.of(load(config), instance))), json)


def show_backup(
    instance: NamedInstance,
    backup: Annotated[
        str, typer.Argument(metavar="BACKUP", autocompletion=completion.backups, help="A backup id, or latest.")
    ] = "latest",
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the position, lock, volumes and chain of one backup."""
    from zsnapdb.jobs.repository import inventory
    from zsnapdb.report.repository.list import BackupDetailView

    detail = inventory.detail(of_instance(config, instance, repository)[1], backup)
    show(BackupDetailView(detail), json)
    show_missing(detail.missing)
