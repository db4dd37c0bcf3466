"""`zsnapdb clone destroy`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, WithForeignSnapshots
from zsnapdb.cli.output import show


def destroy(
    name: CloneName,
    commits: Annotated[bool, typer.Option("--commits", help="Also destroy the commits of the clone.")] = False,
    with_foreign_snapshots: WithForeignSnapshots = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop the server of a clone and destroy its datasets. A clone that does not exist is not an error."""
    from zsnapdb.config import load
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.report.clone import destroy as report

    settings = load(config)
    chosen = {job.GoesToo.COMMITS: commits, job.GoesToo.FOREIGN_SNAPSHOTS: with_foreign_snapshots}
    also = [part for part, goes in chosen.items() if goes]
    if plan:
        planned = job.plan(settings, name, also)
        show(report.DestroyPlanView(planned, name), json)
        return
    destroyed = job.destroy(settings, name, also)
    show(report.DestroyedView(destroyed, name), json)
