"""`zsnapdb consolidate`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, RepositoryName, WaitTime
from zsnapdb.cli.output import show


def consolidate(
    instance: InstanceName = None,
    backup: Annotated[
        str,
        typer.Argument(
            metavar="BACKUP",
            autocompletion=completion.backups,
            help="A backup id, or latest: the newest backup with a complete chain.",
        ),
    ] = "latest",
    repository: RepositoryName = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a full backup of a chain of increments, without the server.

    Receive the chain into scratch datasets of this host, store full streams of the same snapshots as a new backup, and
    remove the datasets. The next backup is an increment of it, and the chain before it may expire.
    """
    from zsnapdb.jobs.trial import consolidate as job
    from zsnapdb.report.trial import drill as report

    settings, chosen = of_instance(config, instance, repository, wait=wait)
    if plan:
        show(report.ConsolidatePlanView(job.plan(chosen, chosen.open_repository(), backup)), json)
        return
    done = job.consolidate(settings, chosen, backup)
    show(report.ConsolidateView(done), json)
