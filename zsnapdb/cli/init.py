"""`zsnapdb init`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show


def init(
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPOSITORY]",
            help="A configured repository; may be left out if there is only one.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make a repository: its marker object.

    Also writes a lost one again, and brings its list of recipients up to date.
    """
    from zsnapdb.config import load
    from zsnapdb.jobs.repository import init as job
    from zsnapdb.report.repository import init as report

    settings = load(config)
    if plan:
        show(report.InitPlanView(job.plan(settings, repository)), json)
        return
    show(report.InitView(job.init(settings, repository)), json)
