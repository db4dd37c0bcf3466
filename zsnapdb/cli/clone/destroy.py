"""`zsnapdb clone destroy`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show


def destroy(
    name: CloneName,
    commits: Annotated[bool, typer.Option("--commits", help="Destroy its commits too.")] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop a clone's server and destroy exactly its datasets. One that is not there is no error."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.report.clone import destroy as report

    settings = load(config)
    if plan:
        planned = job.plan(settings, name, with_commits=commits)
        show(report.DestroyPlanView(planned, name), json)
        return
    gone = job.destroy(settings, name, with_commits=commits)
    show(report.DestroyedView(gone, name), json)
