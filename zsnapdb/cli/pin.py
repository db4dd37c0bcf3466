"""`zsnapdb pin`, and its old other half `zsnapdb unpin`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import completion
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, RepositoryName
from zsnapdb.cli.output import renamed, show


def pin(
    instance: NamedInstance,
    backup: Annotated[
        str,
        typer.Argument(
            metavar="BACKUP", autocompletion=completion.backups, help="A backup id, or latest.", show_default=False
        ),
    ],
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="TEXT", help="Why the backup is kept; `zsnapdb prune` shows this.", show_default=False
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the pin: the retention policy applies to the backup again.")
    ] = False,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Keep a backup regardless of the retention policy.

    The backups that its restore needs are kept too.
    """
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import pin as job
    from zsnapdb.report.repository import list as report

    if remove and reason is not None:
        raise UsageError("--remove takes no --reason", hint="leave --reason out")
    chosen = Instance.at(load(config), instance, repository)
    if remove:
        show(report.UnpinView(job.unpin(chosen, backup)), json)
    else:
        show(report.PinView(job.pin(chosen, backup, reason or "")), json)


def unpin(
    instance: NamedInstance,
    backup: Annotated[
        str,
        typer.Argument(metavar="BACKUP", autocompletion=completion.backups, help="A backup id.", show_default=False),
    ],
    repository: RepositoryName = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Remove the pin of a backup: the old name of `zsnapdb pin --remove`."""
    renamed("unpin", "pin --remove")
    pin(instance, backup, None, True, repository, config, json)
