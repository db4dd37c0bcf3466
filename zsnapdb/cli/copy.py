"""`zsnapdb copy`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, WaitTime
from zsnapdb.cli.output import show, show_errors


def copy(
    to: Annotated[
        str,
        typer.Option("--to", metavar="REPOSITORY", help="The configured repository to copy to.", show_default=False),
    ],
    instance: InstanceName = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPOSITORY",
            help="The configured repository to copy from.",
            show_default="the instance's own",
        ),
    ] = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Copy missing backups to another repository, unchanged."""
    from zsnapdb.base.errors import DamagedError
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import copy as job
    from zsnapdb.report.repository import prune as report

    settings, here = of_instance(config, instance, source)
    there = Instance.at(settings, instance, to, here.events).waiting(parse_duration(wait))
    if plan:
        show(report.CopyPlanView(job.plan(here, there)), json)
        return
    result = job.copy(here, there)
    show(report.CopyView(result), json)
    show_errors(result.plan.unreadable.values())
    if not result.is_whole:
        raise typer.Exit(DamagedError.exit_code)
