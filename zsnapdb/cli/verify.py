"""`zsnapdb verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly, RepositoryName
from zsnapdb.cli.output import show, show_errors


def verify(
    instance: InstanceName = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte: check hashes, decryption, and the records of the streams.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only backups without a successful verification in this time, for example 30d.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Verify at most N backups, the most urgent first.", show_default=False
        ),
    ] = None,
    repository: RepositoryName = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Check that the backups in the repository are undamaged.

    Exit codes: 0 good, 7 damaged, 6 the repository has no backup or cannot be reached.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import verify as job
    from zsnapdb.report.repository import verify as report

    terminal = Terminal()
    chosen = Instance.at(load(config), instance, repository, terminal)
    seconds = parse_duration(older_than) if older_than is not None else None
    depth = job.Depth.READ if deep else job.Depth.LISTED
    if plan:
        planned = job.plan(chosen, depth, older_than=seconds, limit=limit)
        show(report.VerifyPlanView(planned), json)
        return
    result = job.verify(chosen, depth, older_than=seconds, limit=limit)
    terminal.end()
    show(report.VerifyView(result), json)
    error = result.alarm()
    if error is not None:
        show_errors([error])
        raise typer.Exit(error.exit_code)
