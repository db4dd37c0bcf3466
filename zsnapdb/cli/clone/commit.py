"""`zsnapdb clone commit`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show


def commit(
    name: CloneName,
    message: Annotated[
        str, typer.Option("--message", "-m", help="A description of the data, shown with the commit.")
    ] = "",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot a clone in its present state. The commit can be cloned like a backup."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import change as report

    if plan:
        show(report.IntentionView(plans.commit(load(config), THIS_HOST, name, message), "commit"), json)
        return
    show(report.CommittedView(lifecycle.commit(load(config), THIS_HOST, name, message)), json)
