"""`zsnapdb init`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.evidencing import evidencing_keys
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show


def init(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="REPOSITORY",
            help="A configured repository. Optional if only one is configured.",
            show_default=False,
            autocompletion=completion.repositories,
        ),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Create a repository: write its marker object.

    In a repository that exists, `init` replaces a lost marker and updates the list of recipients.
    """
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.repository import init as job
    from zsnapdb.report.repository import init as report

    settings = load(config)
    if plan:
        show(report.InitPlanView(job.plan(settings, repository)), json)
        return
    with evidencing_keys("init", settings, job.chosen(settings, repository)) as changes:
        done = job.init(settings, repository)
        changes += done.changes
    show(report.InitView(done), json)
