"""`zsnapdb pin` and `zsnapdb unpin`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, RepositoryName
from zsnapdb.cli.output import show


def pin(
    instance: NamedInstance,
    backup: Annotated[
        str,
        typer.Argument(
            metavar="BACKUP", autocompletion=completion.backups, help="A backup id, or latest.", show_default=False
        ),
    ],
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Why the backup is kept; `zsnapdb prune` shows this.", show_default=False
        ),
    ],
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
    from zsnapdb.report.repository import pin as report

    pinned = job.pin(Instance.at(load(config), instance, repository), backup, reason)
    show(report.PinView(pinned), json)


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
    """Remove the pin of a backup. The retention policy applies to the backup again."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import pin as job
    from zsnapdb.report.repository import pin as report

    pinned = job.unpin(Instance.at(load(config), instance, repository), backup)
    show(report.UnpinView(pinned), json)
