"""`zsnapdb copy`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly


def copy(
    instance: NamedInstance,
    to: Annotated[
        str,
        typer.Option("--to", metavar="REPOSITORY", help="The configured repository to copy to.", show_default=False),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="REPOSITORY", help="The one to copy from.", show_default="the instance's own"),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Copy the backups of an instance to a second repository, as they are; only what is missing there."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.config import load
    from zsnapdb.errors import DamagedError
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.repository import copy as job
    from zsnapdb.report.repository import copy as report

    progress = ProgressLine()
    settings = load(config)
    here, there = (
        Instance.at(settings, instance, source, progress.tell),
        Instance.at(settings, instance, to, progress.tell),
    )
    if plan:
        planned = job.plan(here, there)
        print(report.plan_json(planned) if json else report.plan(planned))
        return
    result = job.copy(here, there, progress, progress.tell)
    progress.end()
    print(report.result_json(result) if json else report.result(result))
    for error in result.plan.unreadable.values():
        print(f"zsnapdb: {error}", file=sys.stderr)
    if not result.is_whole:
        raise typer.Exit(DamagedError.exit_code)
